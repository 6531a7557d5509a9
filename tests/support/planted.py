"""Two hundred made-up private items: ten kinds, ten each in English and in Chinese, each in its sentence.

None of them belongs to anybody: numbers are from ranges kept for fiction or fail their checksums, names are
put together by hand.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Planted(NamedTuple):
    kind: str
    language: str
    item: str
    sentence: str


def left_of(planted: Planted, cleaned: str) -> str:
    """What stands where the item stood, without placeholders: nothing if it went as a whole."""
    before, _, after = planted.sentence.partition(planted.item)
    start = _shared(before, cleaned)
    end = len(cleaned) - _shared(after[::-1], cleaned[start:][::-1])
    there = re.sub(r"\[[a-z_]+ \d+\]", " ", cleaned[start:end])
    return "".join(char for char in there if char.isalnum())


def _shared(a: str, b: str) -> int:
    """Characters with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


_ENGLISH = {
    "email": (
        ("marta.kovalenko@example.org", "You can write to me at {} if that is easier."),
        ("t_obrien77@mail.example.com", "He still logs in as {} on our tablet."),
        ("JUNE-WHITAKER@EXAMPLE.NET", "I sent it from {} by mistake."),
        ("sam (at) example (dot) com", "my address is {} in case this drops"),
        ("priya dot nair at example dot org", "it was {} , the old one"),
        ("h.lindqvist+forum@sub.example.co.uk", "They answered to {} within minutes."),
        ("dax_0@example.io", "my ex reads {} , I am sure of it"),
        ("office@harrowfield-dental.example.com", "I work the desk behind {} all day."),
        ("ben@example.org", "I only have {} left."),
        ("o'hara.k@example.com", "Please don't mail {} again, my mother sees it."),
    ),
    "phone": (
        ("+1 (555) 010-4477", "My number is {} but please don't ring after ten."),
        ("555-010-9921", "I kept dialling {} and hanging up."),
        ("07700 900358", "Text me on {} when you can."),
        ("+44 7700 900112", "He blocked {} and that was that."),
        ("(020) 7946 0018", "The clinic rings from {} every morning."),
        ("5550102030", "she wrote {} on my hand"),
        ("555.010.7788", "The hotline said {} and then nothing."),
        ("five five five oh one oh two three", "it is {} , I know it by heart"),
        ("+49 30 5550 1234", "From Berlin I got calls, always {} ."),
        ("0161 496 0733 ext. 12", "At work I am on {} until five."),
    ),
    "handle": (
        ("@lonely_kestrel_88", "I post as {} and nobody there knows."),
        ("u/quiet-anchovy", "I asked the same as {} last week."),
        ("nightbus.nina", "My instagram is {} , you'd see it all there."),
        ("https://example.com/profile/tobias-w", "It is all on {} for anyone to read."),
        ("www.example.org/blog/maras-kitchen", "I wrote about him on {} for years."),
        ("Fenwick#4821", "We met on discord, he was {} there."),
        ("@Odd.Sparrow", "then {} liked it and I panicked"),
        ("redkite_1971", "my username is {} since the nineties"),
        ("brambleandash.example.com", "The shop is {} , what is left of it."),
        ("t.me/example_grief_circle", "they kicked me out of {} last night"),
    ),
    "address": (
        ("14 Juniper Lane", "We still live at {} , the three of us."),
        ("2207 West Harcourt Avenue, Apt 5C", "He turned up at {} at midnight."),
        ("Flat 9, 31 Corrie Road", "I moved into {} the week she left."),
        ("P.O. Box 4410", "All her letters go to {} now."),
        ("88 mill street", "everyone on {} heard us"),
        ("7B Old Foundry Close", "The flat at {} was ours."),
        ("1600 Saint Brennan Blvd.", "I drive past {} every day."),
        ("3 The Paddocks, Little Morden", "Mum's house, {} , is sold."),
        ("Room 412, Alder House", "I am in {} and the walls are thin."),
        ("Birkenstraße 17", "In Germany we had {} , second floor."),
    ),
    "postcode": (
        ("SW1A 9ZZ", "It's {} , the posh end, and I can't pay the gas."),
        ("M60 0QX", "I grew up in {} of all places."),
        ("90210-0199", "They moved to {} without me."),
        ("K1A 0Z9", "Our parcel came to {} at last."),
        ("EC2V 7XX", "the office in {} closed"),
        ("00501", "zip code {} , if that tells you anything"),
        ("CF99 1NA", "Dad is buried near {} ."),
        ("TX 75999", "She is in {} now with the kids."),
        ("N1 9GZ", "I walk from {} to the river at night."),
        ("30309", "I haven't left {} in a year."),
    ),
    "account": (
        ("4000 1234 5678 9017", "He used my card, {} , for all of it."),
        ("5105-1051-0510-5109", "They had {} on file."),
        ("GB29 NWBK 6016 1331 9268 00", "I sent the money from {} to him."),
        ("DE89370400440532013999", "my iban is {} , they took it all"),
        ("77209314", "It went from account number {} in one night."),
        ("20-00-99", "She knew the sort code {} by heart."),
        ("340000000000007", "the amex, {} , is maxed out"),
        ("HX-2209-881", "They refused policy number {} after he died."),
        ("88-20417", "I cried over order number {} , a pram."),
        ("011000999", "I gave them my routing number {} , how stupid."),
    ),
    "national_id": (
        ("000-12-3456", "They asked for my social, {} , and I just said it."),
        ("QQ 12 34 56 C", "My national insurance number is {} and that's all I am to them."),
        ("925665999", "He keeps passport number {} in his safe."),
        ("AB123456C", "the form wanted {} again"),
        ("D1234-5678-9012", "They took my driver's license {} after the crash."),
        ("987-65-4320", "Someone used {} to open a line."),
        ("943 476 5919", "I had to read out my NHS number {} three times."),
        ("L01X00T47", "My passport {} ran out and I can't go to the funeral."),
        ("A123456(7)", "My Hong Kong card, {} , is all I have."),
        ("12-3456789", "He filed with my tax id {} for years."),
    ),
    "name": (
        ("Marguerite Ashdown", "My mother was called {} and she never once hugged me."),
        ("Tobiah", "Last night {} slammed the door again."),
        ("Mrs. Pennefather", "I had to sit next to {} and smile."),
        ("Kwabena", "My son {} won't talk to me."),
        ("deirdre", "my sister {} says i exaggerate"),
        ("Ximena", "It was always about {} , never about me."),
        ("dr okonkwo-baines", "then {} said it was stress"),
        ("Linus Farquharson", "I was married to {} for nine years."),
        ("Jessica", "{} left in March and I still set two plates."),
        ("Zbigniew", "My neighbour, {} , found me on the stairs."),
    ),
    "place": (
        ("Llanfairfechan", "I moved to {} to get away from it."),
        ("Chicago", "Everything I had is in {} ."),
        ("Upper Wexcombe", "We came from {} , a hole of a village."),
        ("toronto", "since i left {} nobody calls"),
        ("Lake Wenatchee", "He proposed at {} in the rain."),
        ("St. Aldhelm's Hospital", "I was at {} for three weeks."),
        ("Brackwater College", "I dropped out of {} twice."),
        ("Ostrava", "My family is still near {} ."),
        ("Halden & Pryce", "I worked for {} until they let me go."),
        ("nairobi", "my dad went back to {} in the end"),
    ),
    "date": (
        ("March 3, 1987", "I was born on {} and I feel a hundred."),
        ("14/02/2019", "He died on {} ."),
        ("2021-11-30", "My last good day was {} ."),
        ("9th of October 2015", "We married on the {} in the rain."),
        ("12.08.1990", "It says {} on my file."),
        ("August 21st", "Every {} I fall apart."),
        ("5 Jan 2020", "I haven't slept properly since {} ."),
        ("1974", "I was born in {} , we didn't talk about feelings."),
        ("11-9-98", "the letter is dated {} , I keep it"),
        ("Dec. 24th, 2022", "On {} she took the children."),
    ),
}

_CHINESE = {
    "email": (
        ("liwenqing88@example.cn", "可以发到{}，我每天都看。"),
        ("zhang_yu.99@mail.example.com", "他还在用{}登录我的平板。"),
        ("ｍｅｉｌｉｎ＠ｅｘａｍｐｌｅ．ｃｏｍ", "我的邮箱是{}，别告诉别人。"),
        ("10203040@qq.example.com", "老板总往{}发工作，半夜也发。"),
        ("xiaoyu (at) example.com", "怕被屏蔽，写成{}吧。"),
        ("hr@beichen-tech.example.cn", "投诉要寄到{}，没人回。"),
        ("wang.fang@example.edu.cn", "导师只回{}这个地址。"),
        ("a-lin_2001@example.org", "分手信他发到了{}上。"),
        ("chen@example.io", "我注册用的{}被他改了密码。"),
        ("sunflower1996@example.net", "高中就在用{}，舍不得换。"),
    ),
    "phone": (
        ("13800138000", "我电话{}，晚上十点以后别打。"),
        ("+86 139 0013 9001", "他把{}拉黑了。"),
        ("186-0000-1234", "你加我{}就行。"),
        ("010-65550123", "医院每天早上从{}打来。"),
        ("１５９１２３４０００８", "手机是{}，二十四小时开着。"),
        ("一三八零零一三八零零九", "怕人看见，我写{}。"),
        ("(021) 5555 0188", "单位座机{}，找我就说是表妹。"),
        ("0755-85550101转8023", "客服{}打了三小时。"),
        ("17000001111", "那个号码{}，我背了十年。"),
        ("400-820-0000", "热线{}没人接。"),
    ),
    "handle": (
        ("wxid_moonrise_77", "我微信号是{}，头像是猫。"),
        ("987654321", "QQ：{}，一直没换。"),
        ("@孤独的鲸鱼", "微博上{}那条就是我写的。"),
        ("https://example.cn/u/30291", "都写在{}里了。"),
        ("sunny_cat0816", "vx {} ，聊聊吧。"),
        ("kafka_1999", "我的抖音号{}没人看。"),
        ("www.example.cn/blog/xiaoman", "以前我在{}写日记。"),
        ("@lin_xiaobei", "他天天翻{}的动态。"),
        ("rainy0303", "小红书号：{}，全是哭的照片。"),
        ("tieba.example.com/p/7782", "帖子还在{}上挂着。"),
    ),
    "address": (
        ("上海市徐汇区天平路88号3楼", "我们还住在{}，天天碰面。"),
        ("幸福里小区12栋2单元301室", "她半夜跑到{}来敲门。"),
        ("中关村大街1号院5号楼", "公司在{}，我每天绕着走。"),
        ("解放路二十三号", "老房子在{}，要拆了。"),
        ("湖滨花园3期8栋", "搬到{}以后没睡过整觉。"),
        ("青石巷17号", "奶奶家在{}，我回不去了。"),
        ("成都市武侯区科华北路65号", "婚纱店在{}，定金都交了。"),
        ("7号楼1502室", "快递写的是{}，可我不敢开门。"),
        ("长宁路1027弄6号402", "爸妈住{}，我住宿舍。"),
        ("金色家园B座1203", "他在{}租了房，和别人。"),
    ),
    "postcode": (
        ("200031", "邮编{}，信寄到就行。"),
        ("100080", "老家邮编是{}，我还记得。"),
        ("518000", "寄到{}，写我妈的名字。"),
        ("610041", "邮政编码：{}。"),
        ("310012", "{}那一片我都不敢去。"),
        ("430070", "地址后面加{}。"),
        ("２１００２４", "邮编写{}，别写错。"),
        ("350001", "我从{}搬到这里，谁都不认识。"),
        ("710068", "包裹退回{}了。"),
        ("999077", "香港的邮编{}其实是瞎填的。"),
    ),
    "account": (
        ("6222 0200 0000 1234 568", "他刷了我的卡{}，全没了。"),
        ("6217000000001234567", "工资卡{}在婆婆手里。"),
        ("1001244309000012345", "钱从账号 {}转走的。"),
        ("6228480000000000018", "她背得出我的卡号：{}。"),
        ("2018011234", "系统里学号{}变成了退学。"),
        ("A10293", "离职那天工号 {}就登不上了。"),
        ("88120417", "订单号 {}，是给宝宝买的车。"),
        ("４３６７４２０００００００００１", "信用卡{}刷爆了。"),
        ("00392817", "护士念着病历号：{}，像念货号。"),
        ("HT-2020-118", "合同号{}上是我的签名，可我没签。"),
    ),
    "national_id": (
        ("11010519900307002X", "身份证{}被他拿去贷款了。"),
        ("310101198512120011", "填表又要{}，我手抖。"),
        ("E12345678", "护照号{}在中介手里，走不了。"),
        ("440304 19921105 0018", "她连我的身份证{}都记得。"),
        ("510107197808080035", "我报了身份证号是 {}，对方就沉默了。"),
        ("0038821900", "社保号 {}查不到，等于我没工作过。"),
        ("G87654321", "我的护照{}过期了，回不去奔丧。"),
        ("320106197001010018", "酒驾以后驾驶证号 {}被扣了。"),
        ("４２０１０６１９８８０９１５００３３", "网贷填的是{}，我的。"),
        ("C1234567(8)", "香港身份证{}是我唯一的证件。"),
    ),
    "name": (
        ("王小明", "我叫{}，今年三十一。"),
        ("李思远", "昨晚{}又摔门走了。"),
        ("陈老师", "开会的时候{}当着大家说我。"),
        ("欧阳静怡", "我妹妹{}从来不回我消息。"),
        ("小周", "办公室里{}最会做人。"),
        ("张总", "{}说不行就走人。"),
        ("赵一帆", "和{}分手以后，我不敢看手机。"),
        ("司徒念", "室友{}把我的东西都扔了。"),
        ("阿芳", "只有{}还记得我的生日。"),
        ("刘桂芬", "婆婆{}把孩子抱走了。"),
    ),
    "place": (
        ("哈尔滨", "我一个人在{}过冬。"),
        ("清河县", "老家在{}，回去要坐一夜车。"),
        ("浙江", "毕业去了{}，谁也不认识。"),
        ("第六人民医院", "我在{}住了三个星期。"),
        ("北辰科技", "我在{}干了五年，说裁就裁。"),
        ("临江三中", "我在{}教书，教不下去了。"),
        ("望京", "每天从{}挤地铁回来就哭。"),
        ("柳林镇", "爸爸还在{}等我。"),
        ("温哥华", "她带着孩子去了{}。"),
        ("华东师范大学", "我从{}退学了，没敢说。"),
    ),
    "date": (
        ("1990年3月7日", "我{}出生，属马。"),
        ("2019年2月14号", "他是{}走的。"),
        ("2021-11-30", "最后一次笑是{}吧。"),
        ("八月十五日", "{}那天家里没有人。"),
        ("腊月二十三", "每年{}我都不敢回家。"),
        ("92年生", "我{}的，还没成家。"),
        ("2015/10/9", "我们{}领的证。"),
        ("一九八五年十二月", "我妈{}生的我。"),
        ("12月24号", "{}晚上她带走了孩子。"),
        ("２０２０年１月５日", "从{}起我没睡好过。"),
    ),
}


def _items(table: dict, language: str) -> list[Planted]:
    return [
        Planted(kind, language, item, sentence.format(item))
        for kind, rows in table.items()
        for item, sentence in rows
    ]


PLANTED = [*_items(_ENGLISH, "en"), *_items(_CHINESE, "zh")]

_HELD_OUT = {
    ("name", "en"): (
        ("Oluwaseun", "honestly Oluwaseun was the only one who stayed"),
        ("Bartholomew Crane", "He signs everything 'Bartholomew Crane', even birthday cards."),
        ("jake", "so jake just laughs and walks out"),
        ("Siobhan", "Siobhan thinks I should leave."),
        ("tamsin", "me and tamsin havent spoken since easter"),
        ("Professor Adeyemi-Holt", "I failed with Professor Adeyemi-Holt of all people."),
        ("Nana Bea", "After Nana Bea died the house went quiet."),
        ("maddie", "my daughter maddie stopped eating"),
        ("Kjell", "The new manager is Kjell and he hates me."),
        ("Auntie Florrie", "We lived with Auntie Florrie until I was nine."),
    ),
    ("name", "zh"): (
        ("孙浩然", "孙浩然根本不在乎我怎么想。"),
        ("林嘉怡", "后来林嘉怡把聊天记录发到群里。"),
        ("老吴", "隔壁老吴天天半夜装修。"),
        ("晓彤", "晓彤说她受够了。"),
        ("何医生", "何医生让我先停药。"),
        ("周子墨", "我儿子周子墨不肯上学。"),
        ("徐姐", "徐姐把功劳都算在自己头上。"),
        ("马建国", "我爸马建国一辈子没夸过我。"),
        ("诺诺", "诺诺才三岁，天天问爸爸去哪了。"),
        ("郑凯", "郑凯又把钱输光了。"),
    ),
    ("place", "en"): (
        ("Dunmurry", "I took the first bus out of Dunmurry."),
        ("Saskatoon", "It gets dark early in Saskatoon."),
        ("Greggs", "I do nights at Greggs and sleep all day."),
        ("St Jude's Primary", "They rang from St Jude's Primary again."),
        ("boise", "moved back to boise with nothing"),
        ("Kaiser", "Kaiser denied the claim twice."),
        ("Whitby Pier", "We scattered him off Whitby Pier."),
        ("the Northgate Centre", "I had a panic attack in the Northgate Centre."),
        ("Tesco", "I saw her in Tesco with him."),
        ("manila", "my wife is still in manila"),
    ),
    ("place", "zh"): (
        ("义乌", "我在义乌摆摊。"),
        ("鼓楼区", "房子在鼓楼区，写的他的名字。"),
        ("富士康", "在富士康上夜班，人都木了。"),
        ("人民公园", "相亲定在人民公园，我没去。"),
        ("协和医院", "妈妈在协和医院等床位。"),
        ("赣州", "过年要回赣州，我一想就睡不着。"),
        ("建设银行", "我在建设银行做柜员。"),
        ("石桥村", "石桥村的人都知道我离婚了。"),
        ("墨尔本", "他去墨尔本读书，就没有然后了。"),
        ("市一中", "孩子没考上市一中，婆婆骂我。"),
    ),
    ("other", "en"): (
        ("(415) 555 0132", "call (415) 555 0132 and ask for the night desk"),
        ("jo.fenn (at) proton.example", "try jo.fenn (at) proton.example maybe"),
        ("19th Dec 2018", "It has been like this since 19th Dec 2018."),
        ("12b Harbour View", "They know I'm at 12b Harbour View."),
        ("4929-0000-1111-2222", "the card 4929-0000-1111-2222 was declined"),
        ("BD51 SMR", "He drove off in my car, BD51 SMR."),
        ("@mothwing", "dm @mothwing if I go quiet"),
        ("LS6 4QP", "parcels still go to LS6 4QP"),
        ("078-05-1120", "He had my 078-05-1120 written down."),
        ("hunter2!x", "my password is hunter2!x and he knows it"),
    ),
    ("other", "zh"): (
        ("15000000012", "号码15000000012，别告诉我妈。"),
        ("qiuqiu_0921", "加我微信 qiuqiu_0921 吧。"),
        ("腊月初八", "他腊月初八走的。"),
        ("光明路5号", "店开在光明路5号。"),
        ("粤B12345", "撞我的车是粤B12345。"),
        ("350102199901010022", "系统里350102199901010022不是我。"),
        ("ninini@example.cn", "写信到ninini@example.cn。"),
        ("6225760000001111", "卡6225760000001111被停了。"),
        ("一三九零零零零一二三四", "一三九零零零零一二三四，随时打。"),
        ("3栋1102", "我住3栋1102，灯一直亮着。"),
    ),
}
HELD_OUT = [
    Planted(kind, language, item, sentence)
    for (kind, language), rows in _HELD_OUT.items()
    for item, sentence in rows
]
"""Sixty more, written when patterns and lists were done; 42 of them were found at once (19 of 20 with a form,
15 of 20 English names and places, 8 of 20 Chinese). Lists and rules were widened after that, so they are no
longer unseen."""


def _names(language: str, *pairs: tuple[str, str]) -> list[Planted]:
    return [Planted("name or place", language, item, sentence) for item, sentence in pairs]


UNSEEN = [
    *_names(
        "en",
        ("Ngaire", "Ngaire has not been the same since the stroke."),
        ("Callum Thornbury", "I share an office with Callum Thornbury, lucky me."),
        ("steph", "then steph goes and tells everyone"),
        ("Mister Abara", "I owe Mister Abara two months of rent."),
        ("fiona", "fiona wont answer my texts"),
        ("Auntie Rukhsana", "It was Auntie Rukhsana who found the letters."),
        ("Dov", "Nobody asked Dov what he wanted."),
        ("lorcan", "i still love lorcan and i hate it"),
        ("Piotrek", "He calls himself Peter now but he is Piotrek to me."),
        ("Elowen", "My little one, Elowen, starts school soon."),
        ("Skelmersdale", "I am stuck in Skelmersdale with no car."),
        ("Aldi", "I cried in Aldi by the frozen peas."),
        ("St. Bride's", "We were married at St. Bride's in the snow."),
        ("winnipeg", "its minus thirty here in winnipeg and im alone"),
        ("Northfield High", "I teach at Northfield High, for now."),
        ("Lake Tekapo", "He wanted his ashes at Lake Tekapo."),
        ("Porto", "Since Porto I do not trust him."),
        ("deloitte", "got rejected by deloitte again"),
        ("Ward 7", "I spent the night on Ward 7 listening to the pumps."),
        ("Khayelitsha", "My mother still lives in Khayelitsha."),
    ),
    *_names(
        "zh",
        ("梁雨桐", "梁雨桐昨天把我拉黑了。"),
        ("老何", "老何喝多了就打人。"),
        ("范老师", "范老师说我这样下去毕不了业。"),
        ("贾文博", "我和贾文博在一起七年了。"),
        ("佳佳", "佳佳哭着要找妈妈。"),
        ("方姐", "是方姐帮我垫的钱。"),
        ("唐小婉", "唐小婉其实什么都知道。"),
        ("温予安", "我暗恋温予安三年，没敢说。"),
        ("大刘", "大刘又来借钱了。"),
        ("罗医生", "下周还要见罗医生。"),
        ("包头", "冬天的包头冷得人发慌。"),
        ("宝安区", "我们租在宝安区，一个月三千二。"),
        ("海底捞", "那天在海底捞，他跟我提了离婚。"),
        ("省人民医院", "爷爷在省人民医院抢救。"),
        ("字节跳动", "我被字节跳动优化了。"),
        ("柳河屯", "从柳河屯考出来，我不敢停。"),
        ("京东", "我给京东送快递。"),
        ("西湖", "我们在西湖边上吵了一架。"),
        ("第二实验小学", "孩子在第二实验小学被欺负。"),
        ("大兴", "每天从大兴坐一个半小时地铁。"),
    ),
]
"""Forty names and places, written last; nothing was changed after they were tried."""

_FRESH = {
    ("form", "en"): (
        ("mia_underscore_k at gmail", "find me, mia_underscore_k at gmail"),
        ("0412 555 199", "text 0412 555 199 and i will answer"),
        ("five-oh-three, five five five, 0148", "It's five-oh-three, five five five, 0148."),
        ("@the.pale.otter", "it was @the.pale.otter who screenshotted it"),
        ("22 October 2011", "On 22 October 2011 my life stopped."),
        ("the twenty-first of June", "We buried her on the twenty-first of June."),
        ("Unit 6, 118 Kestrel Parade", "They found me at Unit 6, 118 Kestrel Parade."),
        (
            "ghp_9sT2vQ0xW3yZ4aB5cD6eF7gH8iJ9kL0mN1oP",
            "he put ghp_9sT2vQ0xW3yZ4aB5cD6eF7gH8iJ9kL0mN1oP in the chat",
        ),
        ("MRN 00418-72", "My chart says MRN 00418-72 and nothing else about me."),
        ("Tr0ub4dor&3", "he changed the wifi password to Tr0ub4dor&3 so i cant get on"),
    ),
    ("form", "zh"): (
        ("136 1234 0000", "急的话打136 1234 0000。"),
        ("一八六，零零零零，一二三四", "号码是一八六，零零零零，一二三四，别打错。"),
        ("ahuan_lonely", "绿泡泡：ahuan_lonely，备注树洞。"),
        ("1145141919", "我扣扣1145141919。"),
        ("高雄市三民區建國三路231號7樓", "我租在高雄市三民區建國三路231號7樓。"),
        ("翠湖天地6幢1803", "他知道我住翠湖天地6幢1803。"),
        ("九五年六月十八", "我是九五年六月十八的生日。"),
        ("沪A·8K392", "追尾我的是沪A·8K392。"),
        ("zhouzhou艾特163点com", "邮件发zhouzhou艾特163点com。"),
        ("Qwe123456", "支付密码就是Qwe123456，他都知道。"),
    ),
    ("name or place", "en"): (
        ("Rasheeda", "Rasheeda told the whole ward about me."),
        ("Gus", "I walked Gus at four in the morning again."),
        ("kiera", "kiera unfriended me and i found out from a screenshot"),
        ("Mr Thistlewood", "Mr Thistlewood put me on a warning."),
        ("BRENDAN KEOGH", "The letter was addressed to BRENDAN KEOGH, that's my dead father."),
        ("Tunde and Folake", "I raised Tunde and Folake on my own."),
        ("Ballymena", "Nobody in Ballymena talks about it."),
        ("wagga wagga", "stuck out in wagga wagga with the inlaws"),
        ("Costco", "I broke down in the Costco car park."),
        ("Hollis Street Clinic", "The Hollis Street Clinic lost my file."),
    ),
    ("name or place", "zh"): (
        ("许志强", "许志强把房子卖了都没跟我说。"),
        ("蔡依晨", "同桌蔡依晨不理我了。"),
        ("老郑头", "楼下老郑头天天骂人。"),
        ("贝贝", "我家贝贝发烧三天了。"),
        ("孟姐", "孟姐劝我别离。"),
        ("黄护士长", "黄护士长排班总针对我。"),
        ("昆明", "从昆明回来我就病了。"),
        ("万达广场", "在万达广场碰见他和那个女的。"),
        ("西南财大", "我在西南财大读研二。"),
        ("拼多多", "老公在拼多多上班，一个月见不到两次。"),
    ),
}
FRESH = [
    Planted(kind, language, item, sentence)
    for (kind, language), rows in _FRESH.items()
    for item, sentence in rows
]
"""Forty more, written after the second widening of the patterns and before any of them was tried; nothing was
changed after that."""
