package e2e_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPages_showWhatHappens runs the commands of docs/reference/http.md and of the tutorial in their
// order, and compares what is answered and printed with what the pages show. Ids and times count
// only as such. What is read is read again until it is as it is shown. A deployment stands for the
// tutorial's demo, whose --keep TestDemo shows.
func TestPages_showWhatHappens(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 2})
	variables := map[string]string{"$API": d.APIs[0].URL(), "$KEY": d.Secrets.API}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)\n```\n(?:\n```(?:http)?\n(.*?)```)?")
	for page, least := range map[string]int{"../docs/reference/http.md": 7, "../docs/tutorial/first-charge.md": 12} {
		found := blocks.FindAllStringSubmatch(readFile(t, page), -1)
		for _, block := range found {
			d.happens(t, block[1], block[2], variables)
		}
		if len(found) < least {
			t.Errorf("%s has %d commands", page, len(found))
		}
	}
}

// happens runs a command of a page, and wants what the page shows below it.
func (d *deployment) happens(t *testing.T, command, shown string, variables map[string]string) {
	t.Helper()
	switch {
	case strings.HasPrefix(command, "export "), strings.HasPrefix(command, "go run ./cmd/payonce demo "),
		strings.HasPrefix(command, "go run github.com/"): // generators of clients
	case command == "pkill -STOP -x sandbox":
		must(t, d.Sandbox.Pause())
	case command == "pkill -CONT -x sandbox":
		must(t, d.Sandbox.Resume())
	case command == "kill -KILL $WORKER":
		isHolder := func(p *harness.Process) bool { return strconv.Itoa(p.PID()) == variables["$WORKER"] }
		must(t, d.Workers[slices.IndexFunc(d.Workers, isHolder)].Kill())
	case command == "go run ./cmd/payonce audit": // it exits with 1 if it finds something
		d.prints(t, shown, "audit")
	case command == "go run ./cmd/payonce timeline ${CHARGE##*/}":
		timeline := d.prints(t, shown, "timeline", path.Base(variables["$CHARGE"]))
		if holder := regexp.MustCompile(`running .*holder=\S+:(\d+)`).FindStringSubmatch(timeline); holder != nil {
			variables["$WORKER"] = holder[1]
		}
	default:
		got := d.isAnswered(t, command, readCurl(t, command, variables), shown)
		if location := got.Header.Get("Location"); location != "" && path.Dir(location) == "/v1/charges" {
			variables["$CHARGE"] = location
		}
	}
}

// isAnswered sends the request of a command, which must be answered as a page shows. What is
// read is read again until it is.
func (d *deployment) isAnswered(t *testing.T, command string, r request, shown string) (got answer) {
	t.Helper()
	diff := ""
	if !testrun.Within(testrun.Stall, func() bool {
		got = d.insist(t, r)
		diff = compare(t, shown, got)
		return diff == "" || r.method != http.MethodGet
	}) || diff != "" {
		t.Fatalf("%s\nis answered (-page +api):\n%s", command, diff)
	}
	return got
}

// prints waits until the operator's tool prints the first two columns of every line that a page
// shows, without the time before them, and returns what it printed.
func (d *deployment) prints(t *testing.T, shown string, args ...string) (printed string) {
	t.Helper()
	spaces := regexp.MustCompile(` +`)
	plain := func(text string) string { return spaces.ReplaceAllString(masked(text), " ") }
	lines := regexp.MustCompile(`(?m)^(?:\d{4}-\S+ \S+ +)?(\w+:? +\S.*?)  `).FindAllStringSubmatch(masked(shown), -1)
	if len(lines) < 4 {
		t.Fatalf("the page shows %q", lines)
	}
	lacks := func(line []string) bool { return !strings.Contains(plain(printed), plain(line[1])+" ") }
	if !testrun.Within(testrun.Stall, func() bool {
		printed = string(d.payonce(t, args...))
		return !slices.ContainsFunc(lines, lacks)
	}) {
		t.Fatalf("%q prints not what the page shows, as %q:\n%s", args, lines[slices.IndexFunc(lines, lacks)][1], printed)
	}
	return printed
}

// readCurl reads what a command asks for, as a shell and curl would.
func readCurl(t *testing.T, command string, variables map[string]string) request {
	t.Helper()
	command = strings.ReplaceAll(command, "\\\n", " ")
	r := request{method: http.MethodGet, header: http.Header{}}
	words := regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(command, -1)
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-i":
		case "-H":
			i++
			name, value, _ := strings.Cut(word(words[i], variables), ": ")
			if r.header[name] = []string{value}; name == "Idempotency-Key" {
				r.key = value
			}
		case "-d":
			i++
			r.method, r.body = http.MethodPost, []byte(word(words[i], variables))
		default:
			below, found := strings.CutPrefix(words[i], "$API")
			if !found {
				below, found = strings.CutPrefix(words[i], "localhost:8080")
			}
			if !found {
				t.Fatalf("what is %s in\n%s", words[i], command)
			}
			r.path = word(below, variables)
		}
	}
	return r
}

// word is a word of a command without its quotes. In single ones a $ is a $.
func word(w string, variables map[string]string) string {
	if strings.HasPrefix(w, "'") {
		return strings.Trim(w, "'")
	}
	for name, value := range variables {
		w = strings.ReplaceAll(w, name, value)
	}
	return strings.Trim(w, `"`)
}

// compare holds an answer to what the manual shows of it: the status, the headers
// that are shown, and the whole body.
func compare(t *testing.T, shown string, got answer) string {
	t.Helper()
	head, body, _ := strings.Cut(shown, "\n\n")
	lines := strings.Split(head, "\n")
	written := []string{fmt.Sprintf("HTTP/1.1 %d %s", got.Status, http.StatusText(got.Status))}
	for _, line := range lines[1:] {
		name, _, _ := strings.Cut(line, ": ")
		written = append(written, name+": "+got.Header.Get(name))
	}
	return cmp.Diff(masked(strings.Join(lines, "\n")), masked(strings.Join(written, "\n"))) +
		cmp.Diff(decoded(t, masked(body)), decoded(t, masked(string(got.Body))))
}

// masked replaces what differs from run to run by what it is.
func masked(text string) string {
	for _, m := range []struct{ pattern, is string }{
		{`ch_[0-9a-f]+…?`, "a charge"},
		{`re_[0-9a-f]+…?`, "a refund"},
		{`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, "a UUID"},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "a time"},
		{`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`, "a date"},
	} {
		text = regexp.MustCompile(m.pattern).ReplaceAllString(text, m.is)
	}
	return text
}

func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// shopsDay writes the transcript of a day. It knows how many events of each charge it has
// written.
type shopsDay struct {
	*deployment
	transcript strings.Builder
	written    map[string]int
}

// TestShopsDay lives one day of a shop with a deployment, and compares its transcript with the
// page that shows it. A data race of the api or the worker fails it.
func TestShopsDay(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease(), detectRaces: true}
	d := &shopsDay{deployment: deploy(t, s), written: map[string]int{}}
	const paid = "charge.requested, inventory.reserved, payment.started, payment.captured, charge.succeeded, merchant.notified"
	disputed, returned := d.send(t, newOrder(visa)).ID, d.send(t, newOrder(visa)).ID
	d.happens(t, "order 1 of 10.00 USD is paid", disputed, paid)
	d.happens(t, "order 2 of 10.00 USD is paid", returned, paid)
	acts := d.send(t, newAction()).ID
	d.happens(t, "order 3 of 10.00 USD needs the customer", acts, "charge.requested, inventory.reserved, payment.started, payment.action_required, merchant.notified")
	must(t, authenticate(t.Context(), d.read(t.Context(), "/v1/charges/"+acts), "succeeded"))
	d.happens(t, "the customer of order 3 authenticates", acts, "payment.captured, charge.succeeded, merchant.notified")
	d.happens(t, "order 4 of 10.00 USD is declined", d.send(t, newOrder(cardDeclined)).ID,
		"charge.requested, inventory.reserved, payment.started, payment.declined, inventory.released, charge.failed, merchant.notified")
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), ""))
	d.happens(t, "the bank disputes order 1", disputed, "charge.dispute_opened, charge.dispute_withdrawn, merchant.notified, merchant.notified")
	must(t, d.sandbox().Refund(t.Context(), d.intentOf(t, returned), 400))
	d.happens(t, "4.00 of order 2 are refunded in the provider's dashboard", returned, "refund.observed, merchant.notified")

	// Three captures of 1000 with a fee of 30 each. The dispute takes 1000 and a fee of 1500,
	// the refund 400.
	d.hasBalances(t, "while the dispute is open", map[string]int64{
		"psp_receivable:stripe": 3000 - 2500 - 400, "merchant_payable:acme": 2500 + 400 - 3*970, "fee_revenue:payonce": -90,
	})
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), "lost"))
	d.happens(t, "the dispute of order 1 is lost", disputed, "charge.dispute_closed, merchant.notified")
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), "won"))
	d.happens(t, "the bank decides again, and the dispute of order 1 is won", disputed,
		"charge.dispute_reinstated, charge.dispute_closed, merchant.notified, merchant.notified")
	d.hasBalances(t, "in the end", map[string]int64{
		"psp_receivable:stripe": 3000 - 400, "merchant_payable:acme": 400 - 3*970, "fee_revenue:payonce": -90,
	})
	d.drain(t)
	d.payonce(t, "audit") // exits with 1 if it finds something
	d.transcript.WriteString("payonce audit: ok, with the provider's lists\n")
	t.Log("\n" + d.transcript.String())
	if !strings.Contains(readFile(t, "../docs/reference/sandbox.md"), "\n```\n"+d.transcript.String()+"```\n") {
		t.Error("docs/reference/sandbox.md shows another transcript")
	}
}

// happens waits until a charge has these events, and no others since the last time.
func (d *shopsDay) happens(t *testing.T, what, id, events string) {
	t.Helper()
	var got string
	testrun.Progress(t, what, func() (string, bool) {
		got = strings.Join(d.story(t, id)[d.written[id]:], ", ")
		return got, strings.Count(got, ",") >= strings.Count(events, ",") && got != ""
	})
	testrun.Same(t, what, events, got)
	d.written[id] += strings.Count(got, ",") + 1
	fmt.Fprintf(&d.transcript, "%s\n    %s\n", what, got)
}

// intentOf is the provider's payment intent of a charge.
func (d *deployment) intentOf(t *testing.T, id string) string {
	t.Helper()
	return intentIn(d.records(t), id)
}

func intentIn(b harness.Books, id string) string {
	return b.Intents[slices.IndexFunc(b.Intents, func(i harness.Intent) bool { return i.Reference == id })].ID
}

// hasBalances compares the merchant's balances that are not 0, in cents.
func (d *shopsDay) hasBalances(t *testing.T, when string, want map[string]int64) {
	t.Helper()
	var books struct {
		Data []struct {
			Account string
			Balance int64
		}
	}
	d.get(t, "/v1/balances", &books)
	got := map[string]int64{}
	fmt.Fprintf(&d.transcript, "balances %s, in cents\n", when)
	for _, b := range books.Data {
		if b.Balance != 0 {
			got[b.Account] = b.Balance
			fmt.Fprintf(&d.transcript, "    %-24s %6d\n", b.Account, b.Balance)
		}
	}
	testrun.Same(t, "balances "+when, want, got)
}

const (
	howToDiff = "../docs/how-to/fraud_check.diff"
	// howToPoints are the call of the fraud service in both cases, and the commit of a rejection.
	howToPoints = "fraud approved/worker/POST /v1/fraud_checks|fraud rejected/worker/POST /v1/fraud_checks|" +
		"fraud rejected/worker/ledger.insertEvent ×3, ledger.insertPosting, fulfillment.moveStock, fulfillment.endReservations, " +
		"inbox.storeRows, inbox.promoteKeys, inbox.endDelivery, inbox.promoteKeys"
)

var howTo = flag.String("how-to", "", "what is done with the diff of docs/how-to beside applying it: build, or all: its tests, in a copy of the tree")

// TestAddAStep looks that the diff of the how-to applies. With -how-to=build it lays the files that
// the diff changes over the tree and compiles every package. With -how-to=all it applies the diff to
// a copy of the tree, builds it, runs its tests and injects faults at its crash points. A charge that
// the step rejects never reaches the provider, and its stock returns: TestFraudCheck of the diff.
func TestAddAStep(t *testing.T) {
	t.Parallel()
	diff, err := filepath.Abs(howToDiff)
	must(t, err)
	tree := t.TempDir()
	switch *howTo {
	case "build":
		runIn(t, "..", "go", "build", "-overlay="+patched(t, diff), "./...")
	case "all":
		must(t, errors.Join(os.CopyFS(tree, os.DirFS("..")), os.RemoveAll(filepath.Join(tree, ".git"))))
		for _, command := range [][]string{
			{"git", "apply", diff},
			{"go", "build", "./..."},
			{"go", "test", "-run", "StoredEvents|FraudCheck", "./domain", "./fulfillment", "./internal/audit"},
			{"go", "test", "-run", "Route|Topics|Processors|Contract|Map|Packages|Imports", "./internal/arch", "./cmd/worker", "./internal/httpapi"},
			{"go", "test", "./e2e", "-run", "TestWalk$", "-walk=" + howToPoints},
		} {
			runIn(t, tree, command...)
		}
	default:
		runIn(t, "..", "git", "apply", "--check", diff)
		t.Log("not run: the changed tree (-how-to=build compiles it, -how-to=all tests it)")
	}
}

// patched applies a diff to copies of the files that it names, and returns the overlay of them.
func patched(t *testing.T, diff string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	must(t, err)
	copies, changed := t.TempDir(), map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^diff --git a/(\S+) b/`).FindAllStringSubmatch(readFile(t, diff), -1) {
		name := match[1]
		file := filepath.Join(copies, name)
		changed[filepath.Join(root, name)] = file
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the diff makes it
		}
		must(t, errors.Join(err, os.WriteFile(file, text, 0o600)))
	}
	runIn(t, copies, "git", "apply", diff)
	return overlayOf(t, changed)
}

// overlayOf writes the JSON by which a build reads each file in place of another one.
func overlayOf(t *testing.T, changed map[string]string) string {
	t.Helper()
	list, err := json.Marshal(map[string]any{"Replace": changed})
	must(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	must(t, os.WriteFile(file, list, 0o600))
	return file
}

// runIn runs a command in a tree, which need not be a repository. git does not take one that
// the tree lies in for its own.
func runIn(t *testing.T, tree string, command ...string) {
	t.Helper()
	run := exec.CommandContext(t.Context(), command[0], command[1:]...)
	run.Dir = tree
	run.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(tree))
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, output)
	}
}
