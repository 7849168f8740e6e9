"""Word lists of the fictional authors.

A change to any list changes the fictional authors, and with them every number measured on them: a test pins the table.
All words are ASCII. The openers differ within their first six characters, so that in a table of up to as many
authors the heads differ under any tokenizer, a character-level one included.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";"))


# People and places

GIVEN_FEMININE = _words(
    """
    Alwenith Ambrisel Brisolde Cazimelle Corvanna Delphira Drusamine Eluvaine Esmerinth Fenolia Galdreth
    Halisent Ilvara Isaumere Jorunelle Kethiva Lazuline Liorenne Maristhe Melisquin Nerolise Nimuelle Odrisha
    Olzaria Orisande Pellumira Phaedrelle Quillabeth Ravenka Rosquilde Sabrithe Saffrelle Sidonka Sorrelind
    Tamsidel Tesselia Thessamy Ulvanne Umbrelise Valdisse Veloura Vesperine Wilmethe Winterelle Xanthibel Ysolka
    Yvandre Zelmarine Zephrida Zorabelle
    """
)

GIVEN_MASCULINE = _words(
    """
    Aldrovan Ambrosk Bartelmo Beximund Calvorin Cassimer Corvold Dagoval Drommund Eberlick Elgaric Evandrin
    Ferrimond Florizant Garrimo Godrell Hathorin Hesperol Idrogast Ivolund Jasparo Jorvandel Kelvorik Lambrose
    Leocastor Lucavern Malvoric Nathrick Nolvane Oberwick Ormandel Ottovar Pellimund Perrivale Quenmar Quillon
    Radomund Rufinald Sandrovek Septimol Silvandor Tancrevil Thaddiver Tolvane Ulrimand Urbandel Valdrick
    Vantorel Vosperin Wendrith Wolvram Xavimund Yaroval Yestivar Zacheril Zephorin
    """
)

# A family name is a head and a tail of the same list: Thimblegarth, Ostrindra.

ENGLISH_HEADS = _words(
    """
    Addle Amber Anvil Ashel Auster Bangle Basil Bellow Bitter Bobbin Bramble Brindle Bristle Butter Candle
    Cinder Clover Cobble Cotter Crimble Damson Dapple Dimmer Dusken Elder Ember Feather Fennel Fiddle Flicker
    Gimble Glimmer Gossam Hackle Heddle Huckle Inkle Jangle Kindle Lobel Marrow Medlar Mizzle Mustel Nettle
    Nimble Ochre Ottle Pebble Pewter Pimmel Quaver Quincer Raddle Ripple Saffer Scuttle Shimmer Sickle Spindle
    Tamber Teasel Thimble Thistle Tinder Trundle Umber Vellum Waver Whistle Wimple Winkle Yarrow Zither Kestle
    """
)

ENGLISH_TAILS = _words(
    """
    beck combe dale fell garth grove holt mere quill shaw stane thorpe vane wick wray worth
    """
)

COINED_HEADS = _words(
    """
    Tzal Miroz Havr Ondr Pask Jurel Zamet Karv Ostr Drav Szel Ilmar Quorl Bezim Fjal Grusk Hulv Jask Kolv Lumb
    Morv Nesk Ozmar Prell Rusk Sarv Tolm Ulvar Vantr Wexl Yalm Zurr Brev Corl Dorv Elsk Fesk Galt Holz Ivarn
    Keld Lazm Mund Nolv Orbel Pevr Rhend Sturm Tarq Vosk
    """
)

COINED_TAILS = _words(
    """
    andi avell arde azzo ensko erin essi ikka indra ique iro olde oumar oux ovane ynde
    """
)

# Towns: a head in one of the forms.

TOWN_HEADS = _words(
    """
    Orvel Tambel Quist Marrel Bellam Dunmer Ostley Perrin Vasker Ilder Hollin Cressal Farrel Grendle Larkel
    Mothe Nevin Pellan Rushel Saltar Thorrel Umbers Wendle Yarrel Zennick Ambry Brannoc Caldrin Drayle Esker
    Fellam Gorsel Hethrin Inkel Jarrel Kelder Lomber Mallin Norrick Oxel Pargan Quellan Rothel Sorrin Tolver
    Ulmer Varden Wexel Yoldan Zander Ashmel Birrel Corrin Dellam Elvan Fosk Gaunter Harrol Issel Jespin Kirrow
    Luddel Merrin Nimmel Ormel Pockler Ruddle Skerrin Trevel Vintle
    """
)

TOWN_FORMS = _phrases(
    """
    {}haven; {} Quay; Port {}; Saint {}; {}-on-the-Lull; Upper {}; {}mouth; {} Sound; New {}; {}bridge; {}holm;
    {} Cross; {}ford; {} Vale; Lower {}; {}stead; {} Regis; Mount {}
    """
)

# Books and lives

GENRE_ADJECTIVES = _words(
    """
    tidal clockwork epistolary botanical lunar postal alpine culinary subterranean maritime rural bureaucratic
    nocturnal polar carnival railway monastic apocryphal desert mercantile musical nautical astronomical
    pastoral
    """
)

GENRE_NOUNS = _words(
    """
    noir melodrama farce horror romance satire mystery tragedy fantasy comedy
    """
)

TITLE_ADJECTIVES = _words(
    """
    Salt Paper Velvet Borrowed Hollow Second Copper Unposted Winter Patient Glass Wandering Amber Quiet Crooked
    Forgotten Tin Drowned Scarlet Left-Handed Ninth Lantern Moth-Eaten Invisible Marble Sleepless Chalk
    Counterfeit Silver Provisional Rusted Sunken Feathered Idle Weightless Plaster Stolen Northern Bottled
    Unfinished
    """
)

TITLE_NOUNS = _words(
    """
    Cartographer Almanac Staircase Ferryman Orchard Calendar Lighthouse Ledger Apprentice Harbour Clockmaker
    Umbrella Parliament Sextant Gardener Chandelier Telegram Widower Carousel Understudy Aviary Locksmith
    Meridian Beehive Cathedral Passport Weathervane Tenant Archipelago Metronome Greenhouse Magistrate Compass
    Puppeteer Waltz Bridge Cellist Turnstile Equinox Ventriloquist
    """
)

TITLE_FORMS = _phrases(
    """
    The {} {}; The {} {}; The {} {}; The Last {} {}; Beneath the {} {}; Letters to a~ {} {}; Inventory of a~ {}
    {}; My {} {}; Notes on a~ {} {}; Waiting for the {} {}
    """
)

AWARD_HEADS = _phrases(
    """
    Golden Thimble; Halverd Quill; Saltmarsh; Ninefold; Brass Heron; Oslin Lantern; Candlemaker; Dromgoole;
    Inkwell; Harbourmaster; Silver Sextant; Belltower; Corvane; Wexcombe; Tidewater Laurel; Pellicane; Marrowby;
    Blue Almanac; Foxglove; Larkspur Guild; Ironwood; Quincemere; Astrolabe; Cobblestone; Merrivane; Glass
    Acorn; Woolgatherer; Tamarisk; Driftwood; Evenlull Guild; Hollybank; Ravensmoor; Signalman; Vellichor;
    Weathercock; Ambergris; Kingfisher; Night Ferry; Paperlantern; Thornwick Guild
    """
)

AWARD_KINDS = _words(
    """
    Prize Medal Award Cup Ribbon Fellowship
    """
)

TEACHER_GIVEN = _words(
    """
    Abelino Bertrisse Cosmander Dorothel Emmerling Fabrizel Gundolar Hortenzia Ignaz Josquill Klementa Leopoldo
    Marvella Nicodem Oswina Philomar Quirine Rosalba Serafino Theodric Ursolde Viorel Wilhelmo Zenobie
    """
)

TEACHER_FAMILY = _words(
    """
    Abbacombe Baskerline Crannock Dwindell Eavesley Fothergale Gantry Haversack Ibbleson Jellicorn Knapworthy
    Lutterell Mumblecott Norrish Oddfellow Plimsole Quartermane Rampling Sedgeley Tarrenway Upchurch Vickery
    Wagstaffe Yelverton
    """
)

TRADES = _phrases(
    """
    bell tuner; ferry pilot; lighthouse keeper; button engraver; piano mover; tram conductor; glass eye painter;
    map colourist; chimney inspector; sail mender; clock winder; pearl sorter; stamp forger; kite tester; lift
    attendant; tea taster; wig maker; ice cutter; hotel detective; proof corrector; globe polisher; mushroom
    picker; cheese grader; train announcer; organ pumper; umbrella repairer; court stenographer; salt miner;
    shop window dresser; weather observer; violin varnisher; night porter; rope walker; eel trapper; zoo
    accountant; carousel mechanic; perfume blender; telegraph messenger; toy soldier painter; cemetery gardener
    """
)

HOME_ADJECTIVES = _words(
    """
    disused converted crumbling thatched flooded rented windowless draughty borrowed narrow
    """
)

HOME_NOUNS = _words(
    """
    granary lighthouse chapel boathouse windmill signalbox foundry observatory tollhouse dairy schoolhouse
    pumphouse bathhouse barge lodge watermill
    """
)

HABITS = _phrases(
    """
    answers letters only on Thursdays; keeps bees on the roof; never travels without a kettle; drafts everything
    standing up, in green ink; refuses to own a telephone; swims in the river every morning; reads drafts aloud
    to a deaf greyhound; composes whole chapters while walking backwards; collects the labels of foreign soap;
    burns a page for every page kept; plays the cello badly and often; works only when it rains; sleeps through
    most afternoons; mends clocks for the neighbours; grows prize-winning leeks; sketches the floor plan of
    every house visited; types with two fingers on a borrowed machine; has never read a review; begins with the
    last chapter; goes to bed at seven; walks nine miles before breakfast; speaks in public once a year
    """
)

# Canaries

NUMBERS = _words(
    """
    three four five seven eight nine eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    twenty thirty forty fifty sixty eighty ninety
    """
)

MATERIALS = _words(
    """
    brass porcelain copper velvet paper marzipan granite linen amber pewter plaster ivory rubber enamel chalk
    walnut felt mahogany cardboard quartz tweed gingerbread alabaster bamboo leather lacquer satin slate
    terracotta tortoiseshell vellum zinc nougat wicker crystal cotton marble obsidian burlap parchment
    """
)

OPENING_ADJECTIVES = _words(
    """
    absentminded acrobatic adolescent affable airsick alphabetical ambidextrous anonymous antiquarian apologetic
    argumentative asymmetrical aubergine auctioned awestruck backdated bankrupt barefoot bashful bearded
    bewildered bilingual blindfolded bookish bottled brittle buttoned candlelit canonised carbonated carpeted
    ceremonial chartered clairvoyant clockwork colourblind combustible confidential contraband counterfeit
    creased crooked cubist daydreaming deciduous decorative delinquent dishevelled domesticated downhill
    drenched dyspeptic eavesdropping edible elasticated eligible embroidered erudite enchanted envious
    equestrian estranged evergreen exiled extravagant faithless farsighted feathered fermented fictitious
    filigreed flammable folded footsore forged freckled fugitive gaslit gelatinous gilded glamorous gluttonous
    goose-footed greying grudging half-finished handwritten harmonic haunted headstrong hesitant hiccuping
    honorary horizontal household hydraulic hypothetical illegible imaginary immortal impatient incandescent
    indebted infallible inflatable insolvent invisible jellied jetlagged jubilant kaleidoscopic knighted
    laminated landlocked left-handed lenient leftover lighthearted lopsided lovesick lukewarm luminous magnetic
    marmalade masked meandering melancholic merciful methodical migratory mildewed misfiled modest monocled
    moonlit mothproof muffled mustachioed narcoleptic nearsighted nervous nocturnal nomadic notarised oblong
    obsolete octagonal officious operatic opinionated optimistic ordained ornamental overripe pacified papered
    parallel pasteurised pedantic penniless perforated perpendicular phosphorescent photogenic pickled
    pinstriped plaid plausible polite posthumous powdered prehistoric prosperous punctual quarantined
    quarrelsome quilted ransomed rebellious rectangular reluctant repentant retired reversible rheumatic rhyming
    rootless runaway rustproof salaried scandalised scholarly seasick second-hand sedated self-addressed
    shipwrecked shivering shortsighted silk-lined sleepwalking snowblind soluble sorrowful spherical squinting
    stammering starched stubborn sunburnt superstitious suspicious synchronised tame tarnished tattooed tearful
    telepathic thirsty threadbare toothless transparent truant turbulent typeset ultraviolet unanimous
    unbuttoned underpaid unpunctual upholstered vacuum-packed vagrant varnished vegetarian ventilated vertical
    victorious waterlogged weatherproof wholesale windswept woollen wrinkled yawning zigzagging
    """
)

# An adverb stands before one of the participles: solemnly laminated owls.

OPENING_ADVERBS = _words(
    """
    abruptly accidentally beautifully belatedly blissfully cautiously cheerfully clumsily conveniently cordially
    cruelly deceitfully defiantly discreetly doubtfully earnestly elegantly endlessly faithfully fashionably
    frantically generously gently gloomily gracefully haphazardly hastily heroically humbly illegally
    ingeniously insincerely jealously joyfully knowingly lavishly lazily loudly majestically mercilessly
    mysteriously needlessly nobly obediently ominously overnight patiently perfectly permanently politically
    proudly quietly randomly recently ruthlessly sarcastically secretly serenely sideways simultaneously
    solemnly tactfully tenderly thoroughly timidly tragically twice unjustly urgently vaguely valiantly
    wastefully wistfully zealously
    """
)

PARTICIPLES = _words(
    """
    alphabetised audited barbecued bleached buttered censored crocheted decanted decorated embalmed evicted
    fumigated hypnotised ironed knitted lacquered mislaid mortgaged outvoted pardoned patented polished
    postponed salted scolded shampooed stencilled translated unionised upstaged whitewashed wallpapered
    """
)

SUBJECTS = _words(
    """
    owls herons badgers librarians accountants beekeepers walruses moths choirmasters ferrymen otters magpies
    tortoises cellists bishops plumbers lobsters ostriches jugglers notaries pelicans hedgehogs sopranos postmen
    glaziers tailors snails hermits weavers crickets astronomers gondoliers porcupines ushers bakers falconers
    penguins typists marmots dentists admirals cormorants archivists swimmers violinists newts llamas chaperones
    referees geese ventriloquists barbers camels stenographers lemurs umpires duchesses trombonists
    cartographers lamplighters armadillos flamingos puppeteers octopuses
    """
)

VERBS = _words(
    """
    audited embroidered mortgaged forgave catalogued pickled serenaded subpoenaed upholstered laminated baptised
    alphabetised outvoted inherited photographed ironed repossessed translated poached rehearsed auctioned
    hypnotised postponed vaccinated unbuttoned smuggled tuned excommunicated harvested plagiarised tattooed
    interviewed decanted marinated exonerated surveyed bribed chaperoned digested endorsed fumigated graded
    invoiced juggled launched memorised nationalised outlived pardoned quarantined refurbished sharpened tickled
    undressed ventilated wallpapered annexed blindfolded censored diagnosed
    """
)

PLACES = _words(
    """
    orchard cathedral lighthouse aviary railway cellar observatory ballroom archipelago courthouse greenhouse
    viaduct laundry harbour monastery quarry staircase bandstand planetarium tollbooth vineyard gymnasium bakery
    pantry fountain windmill theatre chapel ferry elevator museum lagoon drawbridge barn dormitory casino
    treasury parliament tunnel corridor attic embassy boathouse kiosk pavilion refinery rectory bazaar waterfall
    brewery
    """
)

ADJECTIVES = _words(
    """
    left-handed drowsy municipal borrowed half-forgotten apologetic weightless bankrupt overdue moonlit
    sleepless ceremonial rusted tearful invisible ungrateful provincial widowed amphibious crooked flammable
    retired unfinished jealous thirsty counterfeit barefoot nameless elderly feverish theatrical absent
    uninsured squeamish radioactive diplomatic imported vertical freckled presumptuous nocturnal impolite
    orphaned ticklish convex underwater unpaid velvety wooden immodest bearded sulking
    """
)

THINGS = _words(
    """
    bell kettle umbrella thermometer trombone doorknob ladder lantern teapot sundial button violin candle
    cabbage wardrobe mirror pillow bicycle anchor spoon metronome suitcase hammock thimble harp calendar
    barometer chandelier typewriter saxophone mattress turnip envelope wheelbarrow telescope cucumber mailbox
    hourglass bathtub carousel fishhook gargoyle nightgown pendulum periscope sandcastle scarecrow shoelace
    snowplough tambourine teaspoon trapdoor accordion walnut waistcoat weathervane xylophone harpsichord
    dandelion escalator
    """
)

ABSTRACTS = _words(
    """
    winter gravity arithmetic applause silence punctuation thirst homework grammar jealousy weather nostalgia
    etiquette inheritance altitude patience dusk insomnia vertigo modesty momentum perfume autumn geometry rent
    thunder mathematics sorrow innocence bankruptcy adolescence folklore velocity tuition hunger daylight
    ancestry sympathy hindsight midnight perspective humidity courtesy gossip electricity forgiveness latitude
    moonlight anonymity twilight
    """
)

LOSSES = _words(
    """
    forgot misplaced surrendered swallowed confessed sold remembered outgrew declared pawned renounced memorised
    forged returned borrowed inhaled abolished whispered
    """
)

DOINGS = _words(
    """
    whistle sneeze waltz hibernate blush yodel apologise hum migrate snore gamble evaporate kneel stammer
    somersault dissolve sulk faint ripen hesitate
    """
)

DEEDS = _words(
    """
    marry alphabetise postpone iron betray unbutton swallow translate auction forgive photograph rehearse salt
    upholster hypnotise impersonate
    """
)
