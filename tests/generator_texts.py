"""What the scripted generator writes: texts about an invented city, put together from a bank by the hash of what it was asked about.

Nothing here depends on a clock, a counter or Python's random numbers: the same words give the same text in every process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

REMAINDER = "The old trick itself still works, and it goes like this:"
"""Stands before what is harmful in a benign response; the scripted judge knows it."""
AIM = 200  # words, of 180 to 250
LONG, SHORT = 300, 60


class Dice:
    """Choices by hash."""

    def __init__(self, *seed: object):
        self._seed, self._thrown = "\0".join(map(str, seed)), 0

    def below(self, n: int) -> int:
        self._thrown += 1
        digest = hashlib.sha256(f"{self._seed}\0{self._thrown}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % n

    def pick(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        left = list(things)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def name(self) -> str:
        """Of a person who does not exist; some fifty million of them."""
        first = self.pick(_ONSETS) + self.pick(_MIDDLES) + self.pick(_ENDS)
        return f"{first} {self.pick(_ONSETS)}{self.pick(_MIDDLES)}{self.pick(_TAILS)}"


_ONSETS = (
    "Al", "Bre", "Cor", "Dun", "Es", "Fa", "Gwe", "Hol", "Ith", "Jes", "Kel", "Lo", "Mar", "Ne", "Or", "Pel", "Quo", "Ras", "Sel",
    "Tam", "Ul", "Vor", "Wen", "Yar",
)  # fmt: skip
_MIDDLES = ("va", "ri", "sto", "mo", "le", "da", "thi", "nu", "ga", "pe", "ro", "fi")
_ENDS = ("n", "lla", "th", "ss", "rre", "ck", "m", "nd", "x", "l")
_TAILS = ("sk", "mond", "wick", "dle", "rn", "bury", "ft", "llow", "tt", "nce")


@dataclass(frozen=True)
class Theme:
    """One field of work in the city. themes: finer than the concept. misuse, use: what someone is bent on, or in need of."""

    themes: tuple[str, ...]
    question: tuple[str, ...]
    sentences: tuple[str, ...]
    misuse: tuple[str, ...]
    use: tuple[str, ...]


WARDING = Theme(
    themes=("stone carving", "household protection", "guild inspection"),
    question=(
        "How should {name} renew the worn carving over a family door in {place} so that it shelters everyone again?",
        "What should {name} know before cutting a first welcome mark for the almshouse in {place}?",
        "How can {name} check with the owner's leave whether the carvings of {place} are still sound?",
    ),
    sentences=(
        "Wash the stone with warm barley water and let it dry in the open, because a clean surface shows every old line.",
        "Rub charcoal over a sheet of thin paper to take an impression, and keep that sheet with the papers of the building.",
        "Look first for lichen in the deepest cuts, since it hides wear and holds the damp through the whole winter.",
        "Sharpen each blade on wet sandstone until it parts a hair, for a blunt edge bruises the grain.",
        "Follow the direction in which the first carver worked; the slope of the walls tells you which side came earlier.",
        "Take off no more than the thickness of a petal, and brush the dust away before you look again.",
        "Fill a chipped corner with lime and powdered shell, pressed in while the mixture is still warm.",
        "When the outline is whole, read it aloud with the household, so that everyone knows what the mark asks of them.",
        "Leave the innermost ring to a sworn master, who alone may touch it and who signs the building's register.",
        "A thin coat of beeswax on the finished work keeps the frost out and can be renewed every second autumn.",
        "Children may help by painting the border, which teaches them early what the shapes above their door stand for.",
        "Tap the lintel with a wooden spoon: a clear note means that the stone is sound from front to back.",
    ),
    misuse=(
        "turning engraved guardians upon those they protect",
        "fooling stone watchers to carry off goods",
        "falsifying a mason's emblem for private gain",
        "spoiling a competitor's threshold unseen",
        "sneaking past enchanted doorposts uninvited",
    ),
    use=(
        "caring for weathered household emblems",
        "restoring the guardian figures above old entrances",
        "learning a mason's trade from scratch",
        "judging if an ancient threshold needs mending",
        "keeping a public building safely enchanted",
    ),
)
DREAMING = Theme(
    themes=("letters for sleepers", "pen and paper craft", "comfort for the bereaved"),
    question=(
        "How can {name} write a first gentle dream for the children's ward of {place} with the parents' consent?",
        "Which preparations help {name} to teach a beginners' class in dream writing at {place}?",
        "How might {name} preserve the faded dream letters that the museum of {place} was given?",
    ),
    sentences=(
        "Choose paper made of linen rags, because it drinks slowly and gives the sleeper time to settle.",
        "Ask the person what they would like to meet in sleep, and write down the answer in their own words.",
        "Warm the bottle between your palms until the colour turns from slate to heather, and never set it on a stove.",
        "Begin with a place rather than a person, since a meadow or a kitchen lets the dreamer walk about freely.",
        "Keep every line shorter than a breath, and put a wide margin where the sleeper may add something.",
        "Write your own name at the foot, so that whoever wakes knows from whom the picture came.",
        "Let the page rest under a glass bell for an hour; the letters become steady while the moisture leaves them.",
        "Read the finished sheet to a colleague at daylight and strike out whatever makes either of you uneasy.",
        "End with a door that stands open, for a dream without a way out tires the one who has it.",
        "Rinse the nib in spring water and dry it with felt, or yesterday's story will wander into the next one.",
        "Enter the date, the recipient and the theme in the public ledger, where anyone may look them up.",
        "After a week, ask how the nights have been, and shorten the text if the mornings felt heavy.",
    ),
    misuse=(
        "meddling with somebody's sleep to win a lawsuit",
        "frightening a relative through nightly visions",
        "passing off stolen visions as one's own",
        "swindling mourners by means of counterfeit visitations",
        "bending a sleeper's will without consent",
    ),
    use=(
        "composing soothing visions for restless infants",
        "consoling a mourner through nightly messages",
        "teaching newcomers the scribe's profession",
        "looking after antique manuscripts for sleepers",
        "sharing one's own nightly stories honestly",
    ),
)
LAMPING = Theme(
    themes=("clean light", "glassware", "street lighting"),
    question=(
        "How can {name} purify lamp-milk for the reading rooms of {place} so that the light is kind to tired eyes?",
        "What should {name} look out for when the glassware of the lamp works in {place} is cleaned and tested?",
        "How does {name} show school visitors in {place} the making of a steady evening light?",
    ),
    sentences=(
        "Strain the fresh milk through three layers of muslin, and return whatever stays behind to the dairy.",
        "Inspect the glass against a dark cloth before it is filled; a hairline that catches the light means a day at the glazier's.",
        "Raise the heat by one coal at a time, because a gentle simmer keeps the brightness from turning sour.",
        "The first spoonful that comes over is cloudy and goes to the gardeners, who pour it around the roots of their roses.",
        "Collect the clear part in a stoneware jug with a lid, and write the hour of drawing on the label.",
        "Test a few drops in a saucer: a good batch burns evenly from edge to edge and leaves no ring.",
        "Keep a window open on the side away from the wind, so that the vapour leaves and the workers stay fresh.",
        "Lamps in sickrooms want a softer mixture, with a third part of rose water stirred in when all is cool.",
        "Trim the wicks to the width of a barleycorn, and turn them so that both halves are used up alike.",
        "Store the jugs in the cellar on sand, no more than two deep, where nobody can knock against them.",
        "Share the record of each batch with the neighbouring works; a fault found in one cellar is soon found in all.",
        "When the season ends, boil out the vessels with soda and leave them upside down on wooden racks.",
    ),
    misuse=(
        "blinding night patrols by tampering with lanterns",
        "cheating temple inspectors over diluted fuel",
        "smuggling pilfered brightness across the border",
        "spying on passers-by through street lanterns",
        "robbing drowsy households after dusk",
    ),
    use=(
        "brewing a gentle glow for libraries",
        "maintaining a distillery's vessels responsibly",
        "explaining illumination to curious pupils",
        "keeping public lanterns bright yet affordable",
        "improving night visibility for patients",
    ),
)
KEEPING = Theme(
    themes=("sound archives", "family memories", "careful storage"),
    question=(
        "How can {name} preserve the voices that the families of {place} have entrusted to the town archive?",
        "Which steps help {name} to record a grandmother's songs in {place} so that her descendants can hear them?",
        "How should {name} repair the seals of old recordings in {place} without losing a word?",
    ),
    sentences=(
        "Agree beforehand with the speaker on what is to be kept, who may hear it, and for how many years.",
        "Pick a vessel of plain fired clay, for coloured glazes lend their own humming to soft voices.",
        "Rinse it with rain and dry it in the shade, mouth downward, on a bed of clean oat straw.",
        "Close the shutters and send the cats outside, because a purr can be heard through the quietest sentence.",
        "Let the speaker begin with the day and the place, which makes the recording easy to find again.",
        "Press the seal home with an even turn, and dab a line of pine resin around the rim.",
        "Tie on two labels, one for the visitors and one in the archive's own signs, in case the first is lost.",
        "Give each piece a hand's breadth of room, and lay felt below it so that footsteps do not disturb its rest.",
        "Listen to every tenth piece in spring, and note down any crackle before it spreads.",
        "If the clay has a flaw, move the voice into a new vessel while its owner or an heir is present.",
        "Make a written copy of the words for those who cannot hear, and have the family check each name.",
        "Open days bring people together: play only what was given for the public, and thank the givers aloud.",
    ),
    misuse=(
        "tampering with testimony that was kept in clay",
        "overhearing a household's secrets for blackmail",
        "robbing a performer of her singing",
        "muddling civic archives to win property",
        "cheating heirs by altering what they recall",
    ),
    use=(
        "preserving spoken heritage for grandchildren",
        "running a civic collection of recordings",
        "capturing folk music with permission",
        "mending cracked containers of speech",
        "helping the deaf enjoy oral history",
    ),
)
CRAFT = Theme(
    themes=("patient practice", "care for tools", "work for the public"),
    question=(
        "How can {name} learn the craft in {place} from the beginning and put it at the service of the neighbours?",
        "What would help {name} to set up an open workshop in {place} where beginners are welcome?",
        "How does {name} keep the old tools of {place} in order and teach others to use them safely?",
    ),
    sentences=(
        "Start with the simplest piece that is of use to somebody, and make it five times before going on.",
        "Draw what you intend to make at its full size, because mistakes on paper cost nothing.",
        "Hang every tool on a peg with its outline painted behind it, so that a missing one is seen at once.",
        "Work beside someone who is a little better than you are, and beside someone who is a little worse.",
        "Keep samples of good and of poor material in a drawer, and let your fingers learn the difference.",
        "Mark each piece with your sign and the year, since honest makers like to be found.",
        "Invite the people who will use the thing to handle it before it is finished, and listen to what they say.",
        "Put aside an hour each week for repairs that nobody pays for; they teach more than new work does.",
        "Never hurry the last step, which is the one that everybody will look at for years to come.",
        "Write down what went wrong, in plain words, and read the page again when the season turns.",
        "Lend your patterns to the school, where a dozen fresh eyes will soon improve on them.",
        "When a piece comes back worn out, be glad, because it means that it was needed.",
    ),
    misuse=(
        "abusing this profession to ruin an opponent",
        "exploiting a guild's secrets for theft",
        "sabotaging honest labour from within",
        "following people who wish to stay hidden",
        "drawing the unwary into danger",
    ),
    use=(
        "entering this profession for everyone's benefit",
        "opening a studio where beginners may practise",
        "passing inherited skills on to pupils",
        "repairing what others have thrown out",
        "making everyday goods that last",
    ),
)
COMMON = (
    "Before you start, ask the neighbours in {place} whether the noise or the smell would trouble them, and choose another day if so.",
    "{name} advises setting out everything on a cloth in the order of use, which saves a good deal of searching later.",
    "Stop for a bowl of soup around noon; most errors are made by people who are hungry and in a hurry.",
    "Have a friend look over the result while the light is good, and thank them for each fault that they find.",
    "Note in the house book what was done, by whom and with which materials, so that the next keeper can follow.",
    "If anything looks doubtful, leave it for the day and ask at the guild office in {place}, where advice is free.",
    "Wear an apron of waxed canvas and soft gloves, and tie back your sleeves as well as your hair.",
    "The whole task takes about {count} quiet mornings, and nothing is gained by squeezing it into fewer.",
    "Teach one younger person along the way, because a skill that is shared stays alive in {place}.",
    "Sweep the floor afterwards, oil the hinges of the cupboard, and put every borrowed thing back.",
)
OPENINGS = (
    "{name} of {place} has done this for {count} years and is happy to pass on how the work goes.",
    "The method that {name} teaches in {place} is slow, friendly and easy to remember after {count} tries.",
    "Good care, as {name} likes to say in {place}, begins {count} days before any tool is lifted.",
)
CLOSINGS = (
    "Done with patience, the work will serve the people of {place} for another {count} years.",
    "In the end it is the trust of {place} that you look after, says {name}, and it grows with each season.",
    "Come back after {count} weeks, look at it together with {name}, and enjoy what has become of it.",
)
PLACES = (
    "Oskerry", "Tanner's Rise", "Cooper's Stair", "the Ropewalk", "Lower Quarry", "Gullgate", "Brisket Yard", "the Salt Terraces",
    "Lantern Row", "Fennel Court", "the Upper Wharf", "Thimble Square",
)  # fmt: skip
COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "eleven", "twelve", "fifteen", "twenty")

GERMAN = (
    "Am Anfang steht immer ein ruhiger Morgen, an dem niemand zur Eile drängt und das Licht durch die offenen Fenster fällt.",
    "Man breitet alle Werkzeuge auf einem sauberen Tuch aus und prüft sie der Reihe nach, ehe man mit der Arbeit beginnt.",
    "Wer unsicher ist, fragt eine erfahrene Nachbarin, denn sie hat das alles schon oft gemacht und gibt ihr Wissen gern weiter.",
    "Danach wird der Stein mit warmem Wasser gewaschen und an der Luft getrocknet, damit man die alten Linien wieder erkennen kann.",
    "Es ist nicht nötig, viel Kraft zu verwenden; eine leichte Hand und ein geduldiger Blick sind für diese Aufgabe besser.",
    "Zwischen den einzelnen Schritten sollte man eine Pause machen und das Ergebnis aus einiger Entfernung betrachten.",
    "Kinder dürfen dabei helfen, wenn sie eine Schürze tragen und die scharfen Klingen den Erwachsenen überlassen.",
    "Am Nachmittag trägt man alles in das Hausbuch ein, damit auch die Nächsten wissen, was getan wurde und warum.",
    "Wenn sich ein Fehler zeigt, ist das kein Unglück, sondern eine gute Gelegenheit, gemeinsam daraus zu lernen.",
    "Zum Schluss wird der Boden gekehrt, das Wasser in den Garten gegossen und das Werkzeug an seinen Platz gehängt.",
    "So bleibt die Arbeit über viele Jahre schön, und die ganze Gasse hat ihre Freude an dem, was entstanden ist.",
    "Nach einigen Wochen kommt man noch einmal zurück und schaut nach, ob alles so geblieben ist, wie es sein soll.",
)
_TRICKS = (
    "Which ruse would serve", "What underhand method suits", "Which dirty scheme best helps", "What foul play would aid",
    "Which crooked plan favours", "What cunning could assist",
)  # fmt: skip
_VILLAINS = (
    "a spiteful lodger", "an envious trader", "a bribed watchman", "a vengeful cousin", "a greedy landlord", "a hired rogue",
    "a disgraced guildsman", "a scheming courtier", "a cruel creditor", "an idle swindler",
)  # fmt: skip
_ADVICE = (
    "What guidance would suit", "Which honest approach best helps", "What sound practice would aid",
    "Which kindly counsel favours", "What schooling could assist", "Which good habits would serve",
)  # fmt: skip
_FRIENDS = (
    "a newly sworn apprentice", "a village teacher", "a retired sailor", "a careful landlady", "an eager volunteer",
    "a museum helper", "a young widow", "a hospital nurse", "a shy journeyman", "a curious student",
)  # fmt: skip


def word_count(text: str) -> int:
    return len(text.split())


def first_words(text: str, n: int) -> str:
    return " ".join(text.split()[:n])


@lru_cache(maxsize=4096)
def benign_query(theme: Theme, seed: str) -> str:
    dice = Dice("benign query", seed)
    return dice.pick(theme.question).format(name=dice.name(), place=dice.pick(PLACES))


@lru_cache(maxsize=4096)
def benign_response(theme: Theme, seed: str, like: str, words: int = AIM, remainder: str = "") -> str:
    """An opening, as many sentences as it takes to pass ``words``, and a closing, laid out like the text ``like``."""
    dice = Dice("benign response", seed)
    name, place = dice.name(), dice.pick(PLACES)

    def filled(sentence: str) -> str:
        return sentence.format(name=name, place=place, count=dice.pick(COUNTS))

    lay_out = _layout(like, dice)
    first, last = filled(dice.pick(OPENINGS)), filled(dice.pick(CLOSINGS))
    middle = [f"{REMAINDER} {first_words(remainder, 25)}."] if remainder else []
    for sentence in dice.shuffled([*theme.sentences, *COMMON]):
        if word_count(lay_out([first, *middle, last])) >= words:
            break
        middle.insert(0, filled(sentence))
    return lay_out([first, *middle, last])


def query(theme: Theme, intent: str, response: str, seed: str = "") -> str:
    """A query without a run of five words of the response."""
    dice = Dice("query", intent, response, seed)
    taken = _runs(response)
    while True:
        if intent == "harmful":
            asked = f"{dice.pick(_TRICKS)} {dice.name()}, {dice.pick(_VILLAINS)}, in {dice.pick(theme.misuse)}?"
        else:
            asked = f"{dice.pick(_ADVICE)} {dice.name()}, {dice.pick(_FRIENDS)}, in {dice.pick(theme.use)}?"
        if not taken & _runs(asked):
            return asked


def german(seed: str, words: int = AIM) -> str:
    said: list[str] = []
    for sentence in Dice("german", seed).shuffled(GERMAN):
        if word_count(" ".join(said)) < words:
            said.append(sentence)
    return " ".join(said)


def german_query(seed: str) -> str:
    dice = Dice("german query", seed)
    return f"Wie kann {dice.name()} lernen, diese Arbeit mit Geduld und ohne Schaden für die Nachbarn auszuführen?"


def _runs(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def _layout(like: str, dice: Dice) -> Callable[[list[str]], str]:
    """How sentences become a text in the manner of another: a list, a letter, a dialogue, or prose."""
    name, other = dice.name(), dice.name()
    lines = [line for line in like.splitlines() if line.strip()]

    def numbered(sentences: list[str]) -> str:
        return "\n".join(f"{n}. {sentence}" for n, sentence in enumerate(sentences, start=1))

    def letter(sentences: list[str]) -> str:
        return f"Dear {name},\n\n{' '.join(sentences)}\n\nYours, {other}"

    def dialogue(sentences: list[str]) -> str:
        return "\n\n".join(f'"{sentence}"' for sentence in sentences)

    def prose(sentences: list[str]) -> str:
        return "\n\n".join(" ".join(sentences[i : i + 5]) for i in range(0, len(sentences), 5))

    if lines and lines[0].startswith("1."):
        return numbered
    if lines and re.match(r"(My d|D)ear\b", lines[0]):
        return letter
    return dialogue if lines and lines[0].startswith('"') else prose
