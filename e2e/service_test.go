package e2e_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// promise is something that the running service does for its callers.
type promise struct {
	name string
	keep func(*testing.T, *deployment)
}

func promises() []promise {
	all := []promise{
		{"a charge succeeds and is posted to the ledger", chargeSucceeds},
		{"of ten charges for the last piece one succeeds", lastPiece},
		{"64 requests under one key at once make one charge", sameRequestAtOnce},
		{"a request is the same however it is written", sameRequestWrittenOtherwise},
		{"another body under the same key is refused", sameKeyOtherBody},
		{"a replay shows what was accepted", replayAfterTheEnd},
		{"a refund returns a part, another one the rest", refundInParts},
		{"of ten refunds of 600 of 1000 one is accepted", rivalRefunds},
		{"64 requests for one refund at once make one refund", sameRefundAtOnce},
		{"a refund that the card refuses fails and may be repeated", refundRefusedByCard},
		{"a provider event delivered 200 times is one event", repeatedProviderEvent},
		{"a provider event without a valid signature leaves no row", unsignedProviderEvent},
		{"a dump holds no API key", dumpHoldsNoKey},
		{"the api serves the contract that the tests check", contractIsServed},
		{"health and readiness need no API key", probesNeedNoKey},
	}
	for _, o := range outcomes() {
		all = append(all, promise{o.name, o.check})
	}
	return all
}

// TestService keeps every promise that needs no failure, on one deployment with two
// apis and two workers. Each promise uses charges and keys of its own.
func TestService(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease(), stock: map[string]int{"poster": 1, "rarity": 0}})
	for _, p := range promises() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.keep(t, d)
		})
	}
}

// concurrently sends a request n times at once and returns the answers.
func concurrently(t *testing.T, d *deployment, n int, r request) []answer {
	t.Helper()
	answers := make([]answer, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			<-start
			var err error
			if answers[i], _, err = d.client.insist(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	return answers
}

// sameRequestAtOnce repeats the race for several keys: there is one charge for each,
// and every answer is that charge, byte for byte.
func sameRequestAtOnce(t *testing.T, d *deployment) {
	t.Helper()
	const rounds, clients = 6, 64
	for range rounds {
		o := newOrder(visa)
		r := request{key: "key-" + unique(), body: o.body(t)}
		answers := concurrently(t, d, clients, r)
		firsts := 0
		for _, a := range answers {
			if a.Status != http.StatusAccepted || string(a.Body) != string(answers[0].Body) {
				t.Fatalf("answered %d %s, want the bytes of another answer: %s", a.Status, a.Body, answers[0].Body)
			}
			if a.Header.Get("Idempotent-Replayed") == "" {
				firsts++
			}
			if a.Header.Get("Idempotency-Key") != r.key || a.Header.Get("Idempotency-Expires") == "" {
				t.Errorf("an answer to a request with a key has the headers %v", a.Header)
			}
		}
		// The first answer may have been lost with its connection, so none is legal.
		if firsts > 1 {
			t.Errorf("%d of %d answers are not marked as replays, want 1", firsts, clients)
		}
		const kept = `
with requested as (
  select event_id::text
    from ledger_events
   where version = 1
     and data ->> 'order_id' = $2
)
select concat_ws(' ',
         (select count(*) from idempotency_keys where key = $1),
         (select count(*) from requested),
         (select count(*) from outbox where message_id in (table requested)))`
		if got := row[string](t, d, kept, r.key, o.OrderID); got != "1 1 1" {
			t.Errorf("keys, requested events and messages of order %s are %s, want 1 1 1", o.OrderID, got)
		}
	}
}

// dumpHoldsNoKey searches a dump, as an operator's backup makes it, for API keys and
// the provider's secrets. The logs are searched at the end of every deployment.
func dumpHoldsNoKey(t *testing.T, d *deployment) {
	t.Helper()
	out := string(d.payonce(t, "keys", "create", "--merchant", merchant, "--scopes", "charges:read"))
	fields := strings.Fields(out)
	i := slices.IndexFunc(fields, func(word string) bool { return strings.HasPrefix(word, "sk_live_") })
	if i < 0 {
		t.Fatal("payonce keys create printed no key")
	}
	made := fields[i]
	if got := d.look(t, "/v1/balances", made); got.Status != http.StatusOK {
		t.Fatalf("the new key is answered %d %s", got.Status, got.Body)
	}
	d.await(t, d.sendUnder(t, "key-"+unique()).ID)
	_, neighbourKey := processSecrets()
	d.searchDump(t, []string{made, d.Secrets.API, neighbourKey, d.Secrets.Provider, d.Secrets.Events})
}

// contractIsServed also shows that an answer outside the contract is noticed.
func contractIsServed(t *testing.T, d *deployment) {
	t.Helper()
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := d.do(t, request{method: http.MethodGet, path: "/openapi.yaml"})
	if diff := cmp.Diff(string(document), string(got.Body)); diff != "" {
		t.Errorf("the contract of the tests (-) and of the api (+):\n%s", diff)
	}
	other := newClient(d.client.apis, d.Secrets.API)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.APIs[0].URL()+"/v1/balances", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	got.Header = http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"1"}}
	got.Body = []byte(`{"data":[],"as_of_position":"0"}`) // the contract wants a number
	if err := other.checkAnswer(req, got); err == nil || len(other.violations) != 1 {
		t.Errorf("an answer outside the contract is reported as %v, %v", err, other.violations)
	}
}

func probesNeedNoKey(t *testing.T, d *deployment) {
	t.Helper()
	for _, p := range []*fleet.Process{d.APIs[0], d.Workers[0]} {
		mustAnswer(t, p, "/healthz", http.StatusOK)
		mustAnswer(t, p, "/readyz", http.StatusOK)
	}
}

func mustAnswer(t *testing.T, p *fleet.Process, path string, status int) {
	t.Helper()
	if got := fetch(t, p, path); got.Status != status {
		t.Errorf("%s of %s answers %d %s, want %d", path, p.Name(), got.Status, got.Body, status)
	}
}
