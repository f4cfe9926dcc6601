package arch_test

// module is the import path of the tree whose arrows are pinned.
const module = "github.com/payonce/payonce"

// A room is a package of this module and what it may see of the others. Every
// package has one, and every room has a package.
type room struct {
	path string // below the module

	// sees lists the packages of this module that the room may import. It is
	// complete: what is not named is refused.
	sees []string

	// never is for the few rooms that may see everything else.
	never []string

	// tests says that the room's tests see no more than the room does. Other
	// tests may bring what they need, such as a database.
	tests bool

	// standard says that outside this module only the standard library is seen.
	standard bool

	why string
}

// rooms is the map, from the inside out.
var rooms = []room{
	{path: "groupcommit", why: "shares commits of pgx batches of any kind, so that others can lift it out"},
	{
		path: "domain", standard: true, tests: true,
		why: "pure rules, to be read and tested without anything else",
	},

	{
		path: "ledger",
		sees: []string{"groupcommit", "domain", "internal/postgres"},
		why:  "stores domain's events; its siblings meet it only in the batch of a use case",
	},
	{
		path: "outbox",
		sees: []string{"groupcommit", "internal/postgres"},
		why:  "carries messages of any kind, so that others can lift it out",
	},
	{
		path: "inbox",
		sees: []string{"groupcommit", "internal/postgres"},
		why:  "receives messages of any kind, so that others can lift it out",
	},
	{
		path: "idempotency",
		sees: []string{"groupcommit", "internal/postgres"},
		why:  "receives requests of any kind, so that others can lift it out",
	},

	{
		path: "intake",
		sees: []string{"domain", "idempotency", "internal/postgres", "ledger", "outbox"},
		why:  "accepts; it never meets fulfillment and knows neither HTTP nor the provider",
	},
	{
		path: "fulfillment",
		sees: []string{
			"groupcommit", "domain", "inbox", "internal/merchants", "internal/webhook", "internal/postgres",
			"internal/stripe", "ledger", "outbox",
		},
		why: "carries out what was accepted; it never meets intake and knows no HTTP API",
	},
	{
		path: "fulfillment/schema", standard: true,
		why: "the tables of fulfillment without its code: a program that migrates links no provider client",
	},
	{
		path: "migrations",
		sees: []string{
			"fulfillment/schema", "idempotency", "inbox", "internal/audit", "internal/merchants", "ledger", "outbox",
		},
		why: "puts the packages' tables in order and calls none of their code",
	},
	{
		path: "migrations/version",
		sees: []string{"internal/postgres"},
		why:  "tells a program whether its database is migrated; it links none of the packages",
	},

	{path: "internal/arch", why: "looks at all from outside"},
	{path: "internal/await", why: "waits for a condition, whatever it is"},
	{
		path: "internal/audit",
		sees: []string{"domain", "internal/postgres"},
		why:  "reads the tables and replays the streams; it may not ask the code that it audits",
	},
	{path: "internal/config", why: "serves every room and knows none"},
	{path: "internal/crash", why: "stands before a program, whatever it is"},
	{path: "internal/defects", why: "holds tests alone, so there is nothing to import"},
	{path: "internal/fleet", tests: true, why: "runs programs, whatever they are"},
	{path: "internal/webhook", why: "signs and sends what it is given"},
	{path: "internal/openapi", tests: true, why: "judges by a contract, whoever answers; tests alone import it"},
	{path: "internal/postgres", sees: []string{"groupcommit"}, why: "serves every room and knows none"},
	{path: "internal/postgres/cutproxy", why: "cuts a connection, whatever is said on it"},
	{
		path: "internal/postgres/local",
		sees: []string{"internal/postgres"},
		why:  "starts a server, whatever is kept in it",
	},
	{
		path: "internal/postgres/pgtest",
		sees: []string{"internal/await", "internal/postgres", "internal/postgres/local", "internal/testrun", "migrations"},
		why:  "gives a test a migrated database, whatever it tests",
	},
	{
		path: "internal/telemetry",
		sees: []string{"internal/postgres"},
		why:  "counts what it is told in plain words, so that no room depends on who counts",
	},
	{path: "internal/testrun", why: "runs the tests of a package, whatever they test"},
	{path: "internal/stripe", why: "the provider's client knows the provider and not us"},
	{
		path: "internal/merchants",
		sees: []string{"internal/postgres"},
		why:  "accounts and keys, whatever they are used for",
	},
	{
		path: "internal/rediscache",
		sees: []string{"idempotency", "internal/postgres"},
		why:  "keeps answers beside the database, and nobody depends on what it says",
	},
	{
		path: "internal/sandbox",
		sees: []string{"internal/config", "internal/postgres"},
		why:  "the outside world: with the product's code in it both sides of the books could make one mistake",
	},
	{
		path: "internal/httpapi",
		sees: []string{
			"domain", "idempotency", "inbox", "intake", "internal/audit", "internal/merchants",
			"internal/postgres", "ledger",
		},
		why: "turns HTTP into a use case and its answer back; it never carries out",
	},
	{
		path: "internal/demo", tests: true,
		sees: []string{"internal/fleet", "internal/postgres/local"},
		why:  "shows the service as a stranger sees it, so it shares no code with it",
	},

	{
		path: "internal/app",
		sees: []string{"internal/config", "internal/postgres", "internal/telemetry", "migrations/version"},
		why:  "what both services do at start and at the end",
	},
	{
		path: "internal/app/writes",
		sees: []string{"groupcommit", "idempotency", "ledger", "outbox"},
		why:  "the one list of what may share a commit, in the order of its locks",
	},
	{
		path: "internal/app/doorbell",
		sees: []string{"inbox", "ledger", "outbox"},
		why:  "rings for what a commit leaves to be done; it reads and writes nothing",
	},
	{
		path: "internal/app/api",
		sees: []string{
			"idempotency", "inbox", "intake", "internal/app", "internal/app/doorbell", "internal/app/writes", "internal/audit", "internal/config",
			"internal/httpapi", "internal/merchants", "internal/postgres", "internal/rediscache",
			"internal/telemetry", "ledger",
		},
		why: "wires up what accepts; the provider is out of its reach",
	},
	{
		path: "internal/app/worker",
		sees: []string{
			"domain", "fulfillment", "idempotency", "inbox", "internal/app", "internal/app/doorbell", "internal/app/writes",
			"internal/config", "internal/merchants", "internal/webhook", "internal/postgres", "internal/stripe", "internal/telemetry",
			"ledger", "migrations/version", "outbox",
		},
		why: "wires up what carries out; it accepts nothing",
	},

	{path: "cmd/api", sees: []string{"internal/app", "internal/app/api"}, why: "a main of a few lines"},
	{path: "cmd/worker", sees: []string{"internal/app", "internal/app/worker"}, why: "a main of a few lines"},
	{path: "cmd/sandbox", sees: []string{"internal/app", "internal/sandbox"}, why: "a main of a few lines"},
	{
		path:  "cmd/payonce",
		never: []string{"intake", "internal/app/api", "internal/app/worker", "internal/httpapi", "internal/sandbox"},
		why:   "the operator's tool looks at everything and accepts no charge",
	},

	{
		path: "e2e", tests: true,
		sees: []string{
			"internal/audit", "internal/crash", "internal/fleet", "internal/openapi", "internal/postgres", "internal/postgres/local",
		},
		why: "strangers: they see HTTP, the sandbox's books and the tables, and judge by the audit's one list",
	},
}

// testHelpers are packages that the tests of every room may import: they know
// nothing of this module.
var testHelpers = []string{"internal/await", "internal/testrun"}

// A guest is a third party with the rooms that are about it. Tests are no
// exception.
type guest struct {
	path  string // it and everything below
	rooms []string
	why   string
}

var guests = []guest{
	{
		path:  "github.com/labstack",
		rooms: []string{"internal/app", "internal/app/api", "internal/app/worker", "internal/httpapi"},
		why:   "a room that takes an echo.Context can be reached by HTTP only",
	},
	{
		path:  "github.com/ThreeDotsLabs",
		rooms: []string{"inbox", "internal/app", "internal/app/api", "internal/app/worker", "outbox"},
		why:   "Watermill is the transport between outbox and inbox; steps and use cases never see its messages",
	},
	{
		path:  "github.com/stripe",
		rooms: []string{"internal/stripe"},
		why:   "stripe-go hides retries and sleeps that internal/stripe switches off",
	},
	{
		path:  "github.com/prometheus",
		rooms: []string{"internal/telemetry"},
		why:   "whoever counts is told in plain words, so that rooms can be lifted out and read without it",
	},
	{
		path:  "go.opentelemetry.io",
		rooms: []string{"e2e", "internal/telemetry"},
		why:   "whoever traces is told in plain words too; e2e reads what a collector gets",
	},
	{
		path:  "github.com/exaring",
		rooms: []string{"internal/telemetry"},
		why:   "a pool takes any tracer, so that only one room knows which",
	},
}

// A ban is what a program must not link, not even through others.
type ban struct {
	program string
	path    string // it and everything below
	why     string
}

const (
	noProvider = "the api cannot charge anyone: no bug in a handler may reach the provider"
	noServer   = "a service uses a database and starts none"
	noTests    = "a program carries no test code"
)

var bans = []ban{
	{"cmd/api", "github.com/stripe", noProvider},
	{"cmd/api", module + "/internal/stripe", noProvider},
	{"cmd/api", module + "/fulfillment", "the api accepts; only workers carry out"},
	{"cmd/api", module + "/internal/webhook", "the api sends nothing to shops; only workers do"},
	{"cmd/api", module + "/internal/sandbox", "the outside world is another program"},
	{"cmd/api", module + "/internal/postgres/local", noServer},
	{"cmd/api", "testing", noTests},

	{"cmd/worker", module + "/intake", "the worker carries out; only the api accepts"},
	{"cmd/worker", module + "/internal/httpapi", "the worker serves health and metrics, not the API"},
	{"cmd/worker", module + "/internal/sandbox", "the outside world is another program"},
	{"cmd/worker", module + "/internal/postgres/local", noServer},
	{"cmd/worker", "testing", noTests},

	{"cmd/sandbox", "github.com/stripe", "the provider is not made of its own client's code"},
	{"cmd/sandbox", module + "/internal/stripe", "the provider is not made of its client's code"},
	{"cmd/sandbox", module + "/domain", "the sandbox's books are kept by rules of their own"},
	{"cmd/sandbox", module + "/internal/postgres/local", noServer},
	{"cmd/sandbox", "testing", noTests},

	{"cmd/payonce", module + "/internal/sandbox", "the demo starts the sandbox as the program it is"},
	{"cmd/payonce", module + "/internal/postgres/pgtest", noTests},
}
