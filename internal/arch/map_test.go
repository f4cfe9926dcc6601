package arch_test

// module is the import path of the tree whose imports are checked.
const module = "github.com/payonce/payonce"

// A rule says what one package of this module may import of the others. Every package has
// one, and every rule has a package. Lists are separated by spaces.
type rule struct {
	path    string // below the module
	imports string // all packages that it may import, or "all but" those that it may not
	why     string
}

const (
	// strict are packages whose tests import no more than they do. Other tests may import
	// what they need, such as a database.
	strict = "domain e2e e2e/failover internal/robustness/demo internal/robustness/harness"
	// pure are packages that import, outside this module, the standard library alone.
	pure = "domain fulfillment/schema"
	// testHelpers are packages that every test may import: they know none of the service.
	testHelpers = "internal/testrun"
)

const (
	// public are packages that other modules import. Their exported API is in testdata/api/, and no
	// line of it names anything but the standard library, apiModules and public packages.
	public = "groupcommit idempotency inbox inbox/deadletter outbox outbox/doorbell"
	// apiModules are the third parties of that API.
	apiModules = "github.com/jackc/pgx/v5 github.com/ThreeDotsLabs/watermill"
)

var rules = []rule{
	// The pattern, for other applications too.
	{"groupcommit", "", "batches commits of pgx batches of any kind, so that other applications can import it"},
	{"idempotency", "groupcommit internal/loop", "receives requests of any kind, so that other applications can import it"},
	{"inbox", "groupcommit internal/loop", "receives messages of any kind, so that other applications can import it"},
	{"inbox/deadletter", "groupcommit", "reads and decides by statements of its own: it calls no code of the inbox"},
	{"outbox", "groupcommit internal/loop", "sends messages of any kind, so that other applications can import it"},
	{"outbox/doorbell", "internal/loop", "rings for work of any kind, so that other applications can import it"},

	// The service.
	{"domain", "", "pure rules, to be read and tested without anything else"},
	{"ledger", "domain groupcommit internal/postgres", "stores domain's events; its siblings meet it only in the batch of a use case"},
	{"ledger/books", "domain ledger internal/loop internal/postgres", "reads what is stored: no decision on a charge imports it"},
	{
		"intake", "domain groupcommit idempotency ledger outbox internal/postgres",
		"accepts; it does not import fulfillment and knows neither HTTP nor the provider",
	},
	{
		"fulfillment", "domain groupcommit inbox ledger outbox internal/merchants internal/postgres internal/stripe internal/webhook",
		"carries out what was accepted; it does not import intake and knows no HTTP API",
	},
	{
		"fulfillment/operate", "domain fulfillment inbox ledger internal/postgres",
		"what operators do; no step needs it, so fulfillment does not import it",
	},
	{"fulfillment/schema", "", "the tables of fulfillment without its code: a program that migrates links no provider client"},
	{
		"migrations", "fulfillment/schema idempotency inbox ledger outbox internal/audit internal/merchants",
		"puts the packages' tables in order and calls none of their code",
	},
	{"migrations/version", "internal/postgres", "tells a program whether its database is migrated; it links none of the packages"},

	// What the programs need.
	{"internal/postgres", "groupcommit", "serves every package and knows none"},
	{"internal/merchants", "internal/postgres", "accounts and keys, whatever they are used for"},
	{"internal/stripe", "", "the provider's client knows the provider, and nothing of this module"},
	{"internal/webhook", "", "signs and sends what it is given"},
	{"internal/telemetry", "groupcommit internal/postgres", "counts plain values, so that no package depends on how they are counted"},
	{"internal/audit", "domain ledger ledger/books internal/postgres internal/stripe", "reads the tables, replays the streams and lists what the provider has; of the code that it audits it asks the domain's rules and the readers of the ledger alone"},
	{
		"internal/httpapi", "domain groupcommit idempotency intake ledger ledger/books outbox internal/loop internal/merchants internal/postgres",
		"turns HTTP into a use case and its result into HTTP; it carries out nothing",
	},

	// The programs.
	{"docs/reference", "", "the page of the settings, for the programs"},
	{"internal/program", "docs/reference migrations/version internal/loop internal/postgres internal/telemetry", "what both services do at start and at the end"},
	{
		"internal/console", "domain inbox/deadletter ledger internal/audit " +
			"internal/loop internal/postgres internal/program",
		"shows what is stored; it accepts and carries out nothing",
	},
	{
		"internal/service", "groupcommit idempotency ledger outbox outbox/doorbell internal/postgres internal/program internal/telemetry internal/upkeep",
		"what the api and the worker have in common, and the sandbox has not",
	},
	{"internal/loop", "", "repeats work, whichever it is"},
	{
		"internal/upkeep", "idempotency inbox internal/loop internal/merchants internal/postgres",
		"keeps the tables in order, by the statements of the packages that own the rows; it calls no code of the ledger",
	},
	{
		"cmd/api", "groupcommit idempotency intake internal/httpapi internal/postgres internal/program internal/service internal/telemetry",
		"wires up what accepts; the provider is out of its reach",
	},
	{
		"cmd/worker", "domain fulfillment fulfillment/operate inbox ledger/books outbox internal/audit internal/loop internal/postgres " +
			"internal/program internal/service internal/stripe internal/telemetry internal/upkeep internal/webhook",
		"wires up what carries out; it accepts nothing",
	},
	{
		"internal/sandbox", "internal/loop internal/program",
		"the external services: with the product's code in it, both sides of the ledger could make the same mistake",
	},
	{"cmd/sandbox", "internal/program internal/sandbox", "a main of a few lines"},
	{
		"cmd/payonce", "all but intake internal/httpapi internal/sandbox",
		"the operator's tool reads everything and accepts no charge",
	},

	// The proofs: tests, the demo, and what they need.
	{"internal/arch", "internal/telemetry", "checks the others from outside; only tests import it"},
	{"internal/postgres/local", "internal/loop internal/postgres", "starts a server, whatever is kept in it"},
	{
		"internal/testdb", "domain groupcommit ledger migrations internal/postgres internal/postgres/local internal/testrun",
		"gives a test a migrated database, and charges in it, whatever it tests",
	},
	{"internal/testdb/serve", "internal/postgres/local", "starts a server, whichever tests use it"},
	{"internal/testrun", "internal/postgres/local", "runs the tests of a package and lets them wait, whatever they test"},
	{"internal/robustness/failpoint", "", "stands between a program and its servers, whichever they are"},
	{"internal/robustness/harness", "", "runs programs and asks them as their users do, so it shares no code with them"},
	{
		"internal/robustness/demo", "internal/postgres/local internal/robustness/harness",
		"shows the service as a client sees it, so it shares no code with it",
	},
	{
		"e2e", "internal/audit internal/postgres/local internal/robustness/failpoint " +
			"internal/robustness/harness migrations/version",
		"black-box tests: they see HTTP, the sandbox's books and the tables, judge by the audit's one list, and upgrade from the schema before the newest",
	},
	{
		"e2e/failover", "internal/postgres/local internal/robustness/failpoint internal/robustness/harness",
		"black-box tests, as e2e, of the loss of a primary",
	},
	{
		"e2e/browser", "internal/robustness/harness",
		"black-box tests, as e2e, of the console's pages",
	},
}

// A thirdParty is a module that only some packages import. Tests are no exception.
type thirdParty struct{ path, packages, why string }

var thirdParties = []thirdParty{
	{
		"github.com/labstack", "cmd/api internal/httpapi",
		"a package that takes an echo.Context can be reached by HTTP only",
	},
	{
		"github.com/ThreeDotsLabs", "inbox outbox cmd/worker",
		"Watermill is the transport between outbox and inbox; steps and use cases never see its messages",
	},
	{
		"github.com/pb33f", "internal/httpapi",
		"the contract judges tests; no program reads it at run time",
	},
	{"github.com/stripe", "internal/stripe", "stripe-go hides retries and sleeps that internal/stripe switches off"},
	{
		"github.com/prometheus", "cmd/payonce internal/telemetry",
		"metrics are plain values, so that packages can be imported and read without it; payonce reads durations such as 30d by it",
	},
	{"go.opentelemetry.io", "e2e internal/telemetry", "traces are plain values too; e2e reads what a collector gets"},
	{"github.com/chromedp", "e2e/browser", "the browser's protocol belongs to the test of the console"},
	{"github.com/exaring", "internal/telemetry", "a pool takes any tracer, so that only one package knows which"},
}

// A ban is what a program must not link, not even through others.
type ban struct{ program, path, why string }

const (
	noProvider = "the api asks for movements of money and executes none: no bug in a handler may reach the provider"
	noServer   = "a service uses a database and starts none"
	noTests    = "a program carries no test code"
)

var bans = []ban{
	{"cmd/api", "github.com/stripe", noProvider},
	{"cmd/api", module + "/internal/stripe", noProvider},
	{"cmd/api", module + "/fulfillment", "the api accepts; only workers carry out"},
	{"cmd/api", module + "/internal/webhook", "the api sends nothing to shops; only workers do"},
	{"cmd/api", module + "/internal/sandbox", "the external services are another program"},
	{"cmd/api", module + "/internal/postgres/local", noServer},
	{"cmd/api", "testing", noTests},

	{"cmd/worker", module + "/intake", "the worker carries out; only the api accepts"},
	{"cmd/worker", module + "/internal/httpapi", "the worker serves health and metrics, not the API"},
	{"cmd/worker", module + "/internal/sandbox", "the external services are another program"},
	{"cmd/worker", module + "/internal/postgres/local", noServer},
	{"cmd/worker", "testing", noTests},

	{"cmd/sandbox", "github.com/stripe", "the provider is not made of its own client's code"},
	{"cmd/sandbox", module + "/internal/stripe", "the provider is not made of its client's code"},
	{"cmd/sandbox", module + "/domain", "the sandbox's books are kept by rules of their own"},
	{"cmd/sandbox", module + "/internal/postgres/local", noServer},
	{"cmd/sandbox", "testing", noTests},

	{"cmd/payonce", module + "/internal/sandbox", "the demo starts the sandbox as the program it is"},
	{"cmd/payonce", module + "/internal/testdb", noTests},
}
