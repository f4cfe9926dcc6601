package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/demo"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// asPayonce makes this binary run as payonce, on a server that may lose commits.
const asPayonce = "PAYONCE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asPayonce) != "" {
		os.Exit(run(context.Background(), os.Args[1:], postgres.Options{AllowUnsafeDurability: true}))
	}
	testrun.Main(m)
}

// TestScripts runs the scripts of testdata, each with a database of its own.
func TestScripts(t *testing.T) {
	testrun.Long(t, "each script has a database and a provider")
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			tb, ok := e.T().(testing.TB)
			if !ok {
				return errors.New("the scripts run outside of a test")
			}
			s := &script{tb: tb, url: testdb.URL(tb)}
			s.db = testdb.Connect(tb, s.url)
			if !strings.Contains(s.url, "?") {
				s.url += "?"
			}
			program, err := os.Executable()
			e.Values["script"] = s
			e.Setenv(asPayonce, "1")
			e.Setenv("PAYONCE", program)
			e.Setenv("DATABASE_URL", s.url)
			e.Setenv("ALLOW_PLAINTEXT", "1")
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"payonce": exits,
			"misuse":  misuse,
			"sql":     sql,
			"charge":  with((*script).charge),
			"keep": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
			},
			"opens":    with((*script).opens),
			"balances": with((*script).balances),
			"signs":    with((*script).signs),
			"empty":    with((*script).empty),
			"stripe":   with((*script).stripe),
		},
	})
}

// script is what a script works with.
type script struct {
	tb       testing.TB
	url      string
	db       *postgres.DB
	provider *sandbox.Sandbox
	client   *stripe.Client
}

// with makes a command of a method, which returns whether it holds.
func with(do func(s *script, ts *testscript.TestScript, args []string) (bool, error)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		s, _ := ts.Value("script").(*script)
		holds, err := do(s, ts, args)
		ts.Check(err)
		if holds == neg {
			ts.Fatalf("it is %t", holds)
		}
	}
}

// exits runs payonce, which succeeds or, behind a !, ends with exit code 1.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want := 0
	if neg {
		want = 1
	}
	wantExit(ts, want, args)
}

// misuse runs payonce, which refuses its command line with exit code 2 and nothing on stdout.
func misuse(ts *testscript.TestScript, _ bool, args []string) {
	wantExit(ts, 2, args)
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("on stdout: %s", out)
	}
}

func wantExit(ts *testscript.TestScript, want int, args []string) {
	err := ts.Exec(ts.Getenv("PAYONCE"), args...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// sql runs a statement, and prints a line of what each row has.
func sql(ts *testscript.TestScript, _ bool, args []string) {
	s, _ := ts.Value("script").(*script)
	rows, _ := s.db.Query(s.tb.Context(), args[0]) // CollectRows returns its error
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return strings.TrimSuffix(fmt.Sprintln(values...), "\n"), err
	})
	ts.Check(err)
	for _, line := range lines {
		_, err := fmt.Fprintln(ts.Stdout(), line)
		ts.Check(err)
	}
}

// charge records a charge of acme, of 10 USD: "charge ch_1 begun", paid or notified.
func (s *script) charge(_ *testscript.TestScript, args []string) (bool, error) {
	id, intent := args[0], "pi_"+args[0]
	if s.client != nil {
		in, err := s.client.CreateIntent(s.tb.Context(), "create", stripe.CreateParams{Reference: id, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"})
		if err != nil {
			return false, err
		}
		intent = in.ID
		if _, err = s.client.ConfirmIntent(s.tb.Context(), "confirm", intent, ""); err != nil {
			return false, err
		}
	}
	events := []domain.Event{
		domain.ChargeRequested{Terms: domain.Terms{
			MerchantID: "acme", OrderID: "order of " + id + "\x1b[2J", Money: domain.Money{Amount: 1000, Currency: "USD"}, PaymentMethod: "pm_card_visa",
			Notify: true,
		}, Steps: []string{domain.Payment, domain.Notification}},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent},
	}
	if args[1] != "begun" {
		events = append(events, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: intent, Amount: 1000, Currency: "USD"}, domain.ChargeSucceeded{})
	}
	stream, err := testdb.Append(s.tb.Context(), s.db, ledger.New(id), testdb.Cause(""), events...)
	if err == nil && args[1] == "notified" {
		_, err = testdb.Append(s.tb.Context(), s.db, stream, testdb.Cause(""), domain.MerchantNotified{EventID: stream.Head().ID.String(), Type: "charge.succeeded", Version: 4})
	}
	return true, err
}

// opens reports whether an API key is valid, with so many scopes.
func (s *script) opens(_ *testscript.TestScript, args []string) (bool, error) {
	m, err := merchants.NewAuthenticate(s.db, 1)(s.tb.Context(), args[0])
	if errors.Is(err, merchants.ErrUnauthorized) {
		return false, nil
	}
	if got := fmt.Sprint(m.ID, " ", m.Scopes); len(args) > 1 && got != args[1] {
		err = fmt.Errorf("it opens %s", got)
	}
	return true, err
}

// signs reports whether a delivery to acme that begins now goes to a URL and is signed by these secrets.
func (s *script) signs(_ *testscript.TestScript, args []string) (bool, error) {
	got, err := merchants.NewEndpoints(s.db, 1)(s.tb.Context(), "acme")
	testrun.Same(s.tb, "the endpoint", merchants.Endpoint{URL: args[0], Secrets: args[1:]}, got)
	return true, err
}

// balances waits until so many events are added up: while transactions of other tests are open they wait.
func (s *script) balances(_ *testscript.TestScript, args []string) (bool, error) {
	testrun.True(s.tb, "the balances have all events", func() bool {
		_, err := books.AddUp(s.tb.Context(), s.db)
		testdb.Must(s.tb, err)
		return testdb.One[string](s.tb, s.db, `select highest::text from followers where name = 'balances'`) == args[0]
	})
	return true, nil
}

// empty continues on a database without migrations.
func (s *script) empty(ts *testscript.TestScript, _ []string) (bool, error) {
	ts.Setenv("DATABASE_URL", testdb.Empty(s.tb))
	return true, nil
}

// stripe starts the provider: of it, "stripe refund ch_1 300" refunds a part in the dashboard, and
// "stripe away" stops it.
func (s *script) stripe(ts *testscript.TestScript, args []string) (bool, error) {
	if len(args) == 3 {
		var intent string
		err := s.db.QueryRow(s.tb.Context(),
			`select data ->> 'payment_intent' from ledger_events where stream_id = $1 and type like 'payment.started.%'`, args[1]).Scan(&intent)
		body := fmt.Sprintf(`{"payment_intent":%q,"amount":%s}`, intent, args[2])
		s.provider.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(s.tb.Context(), http.MethodPost, "/refund", strings.NewReader(body)))
		return true, err
	}
	ts.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	ts.Setenv("STRIPE_API_BASE", "http://127.0.0.1:1")
	if len(args) == 1 {
		return true, nil
	}
	var err error
	if s.provider, err = sandbox.New(s.tb.Context(), sandbox.Options{Now: time.Now}); err != nil {
		return false, err
	}
	server := httptest.NewServer(s.provider)
	ts.Setenv("STRIPE_API_BASE", server.URL)
	s.client, err = stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: server.URL})
	ts.Defer(func() { s.client.Close(); server.Close() })
	return true, err
}

func TestReference_commands(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, command := range newParser(new(commands)).Model.Leaves(true) {
		rows = append(rows, []string{arch.Code("payonce " + command.Summary()), command.Help})
	}
	arch.Section(t, "cli.md", "Commands", arch.List(rows))
}

func TestReference_guards(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, g := range demo.Guards() {
		red := cmp.Or(strings.Join(g.Red, "; "), "nothing")
		rows = append(rows, []string{arch.Code(g.Name), g.Kind + ".", "Fault: " + g.Fault + ".", "Violated: " + red + ".", "The charge: " + g.Charge + "."})
	}
	arch.Section(t, "guard-lab.md", "Guards", arch.List(rows))
}

// The commands of payonce that a page shows exist, with their flags. What stands between backticks may be a part of one.
func TestDocs_showCommandsThatExist(t *testing.T) {
	t.Parallel()
	block, command := regexp.MustCompile("(?ms)^```.*?^```"), regexp.MustCompile(`(?m)^(?:\$ )?payonce ([a-z]+(?: [^|;&]*?)?)(?:: |$)`)
	inline := regexp.MustCompile("`payonce ([^`]+)`")
	found := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md", "deploy/*.md", "deploy/*/*.md"} {
		pages, err := filepath.Glob("../../" + pattern)
		testrun.Must(t, err)
		for _, page := range pages {
			if filepath.Base(page) == "cli.md" { // it is generated
				continue
			}
			text, err := os.ReadFile(page)
			testrun.Must(t, err)
			shown := inline.FindAllStringSubmatch(string(text), -1)
			for _, lines := range block.FindAllString(string(text), -1) {
				shown = append(shown, command.FindAllStringSubmatch(lines, -1)...)
			}
			for _, line := range shown {
				found++
				parser := newParser(new(commands), kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))
				if _, err := parser.Parse(strings.Fields(line[1])); err != nil && strings.HasPrefix(err.Error(), "un") { // unknown, or unexpected
					t.Errorf("%s: payonce %s: %v", page, line[1], err)
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("the pages show %d commands", found)
	}
}

// seedWith seeds acme with a webhook secret.
func seedWith(t *testing.T, db *postgres.DB, secret string) error {
	t.Helper()
	s := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", WebhookURL: "https://shop.example", WebhookSecret: secret}
	return s.Run(t.Context(), &console{stdout: io.Discard, stderr: io.Discard}, db)
}

// TestSeed_atOnceNoSecretIsDroppedSilently: of seeds at once that give other secrets one is taken, and
// the others end with an error.
func TestSeed_atOnceNoSecretIsDroppedSilently(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Open(t)
	ends := make(chan string, 8) // the secret that was taken, or none
	for range cap(ends) {
		go func() {
			secret := merchants.NewWebhookSecret()
			if err := seedWith(t, db, secret); err != nil && strings.Contains(err.Error(), "payonce webhooks rotate replaces it") {
				secret = ""
			}
			ends <- secret
		}()
	}
	var taken []string
	for range cap(ends) {
		if secret := <-ends; secret != "" {
			taken = append(taken, secret)
		}
	}
	testrun.Same(t, "the secrets", taken, testdb.All[string](t, db, `select secret from webhook_secrets`))
}

// TestRotate_printsASecretThatMayBeStored: the old secrets have ended, so the merchant needs the one that signs.
func TestRotate_printsASecretThatMayBeStored(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	url := testdb.URL(t)
	direct, proxy := testdb.Connect(t, url), failpoint.StartCutter(t, url)
	testdb.Must(t, seedWith(t, direct, merchants.NewWebhookSecret()))
	db := testdb.Connect(t, proxy.URL())
	var printed, said strings.Builder
	proxy.Arm(failpoint.After, 2)
	r := webhooksRotateCmd{Merchant: "acme"}
	err := r.Run(t.Context(), &console{stdout: &printed, stderr: &said}, db)
	if groupcommit.OutcomeOf(err) != groupcommit.Unknown || proxy.Cuts() != 1 {
		t.Errorf("it ends with %v after %d cuts and says %s", err, proxy.Cuts(), said.String())
	}
	signing := testdb.All[string](t, direct, `select secret from webhook_secrets where ends_at is null`)
	testrun.Same(t, "secrets that sign", []string{strings.TrimSpace(printed.String())}, signing)
}

// TestConsole_printsWhatThereIs: a list that could not be read is one in JSON, and of an example each line is one.
func TestConsole_printsWhatThereIs(t *testing.T) {
	t.Parallel()
	var printed, people strings.Builder
	showSecret[merchants.Key](&console{stdout: &printed, json: true}, "whsec_made", nil, "")
	testrun.Same(t, "a list", "{\n  \"secret\": \"whsec_made\",\n  \"data\": []\n}\n", printed.String())
	printViolations(&people, []audit.Check{{Name: "it starts", Checked: 1, Violated: 1, Examples: []string{"it logs:\none\x1b[2J\ntwo"}}})
	testrun.Same(t, "a violation", "it starts: it logs:\nit starts: one\uFFFD[2J\nit starts: two\n", people.String())
}
