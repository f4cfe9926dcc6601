package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// tenants are the merchants as which a client speaks, by their API keys: in turn
// for new idempotency keys, and as the one of before for whatever follows.
type tenants struct {
	mu      sync.Mutex
	apiKeys []string
	turn    int
	of      map[string]string // idempotency key or charge → API key
}

// pathOf finds what a path is about.
var pathOf = regexp.MustCompile(`^/v1/(?:charges|idempotency-keys)/([^/?]+)`)

// speaker is the API key for a request. An unknown charge is the first one's.
func (t *tenants) speaker(path, key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if about := pathOf.FindStringSubmatch(path); about != nil {
		key = about[1]
	} else if path != "/v1/charges" || key == "" {
		return t.apiKeys[0]
	} else if t.of[key] == "" {
		t.of[key] = t.apiKeys[t.turn%len(t.apiKeys)]
		t.turn++
	}
	if known := t.of[key]; known != "" {
		return known
	}
	return t.apiKeys[0]
}

// met remembers whose the charge is that an answer leads to.
func (t *tenants) met(location, apiKey string) {
	if about := pathOf.FindStringSubmatch(location); about != nil {
		t.remember(about[1], apiKey)
	}
}

func (t *tenants) remember(what, apiKey string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[what] = apiKey
}

// looks bounds how many charges and keys of the other one each merchant asks for.
const looks = 3

// checkTenants looks that neither merchant is shown anything of the other's, and that
// the books of each are those of its own postings. It needs an api that still has
// its way to the database.
func (d *deployment) checkTenants(t *testing.T) {
	t.Helper()
	if d.oneMerchant || d.apiDatabase != nil || !slices.ContainsFunc(d.APIs, runs) {
		return
	}
	const owned = `
select '/v1/charges/' || stream_id
  from (select distinct stream_id from ledger_events where merchant_id = $1 limit $2) as charges
 union all
(select '/v1/idempotency-keys/' || key
   from idempotency_keys k
  where scope = $1
    and not exists (select from idempotency_keys o where o.scope <> k.scope and o.key = k.key)
    and key ~ '^[a-z0-9-]+$'
  limit $2)`
	names := []string{merchant, neighbour}
	for i, name := range names {
		own, other := d.client.tenants.apiKeys[i], d.client.tenants.apiKeys[1-i]
		for _, path := range rows[string](t, d, owned, name, looks) {
			reads := []string{path}
			if strings.HasPrefix(path, "/v1/charges/") {
				reads = append(reads, path+"/events", path+"/refunds")
				for _, write := range []string{path + "/cancel", path + "/refunds"} {
					mustBeProblem(t, d.ask(t, request{path: write, key: "key-" + unique(), body: []byte("{}")}, other), http.StatusNotFound, "not-found")
				}
			}
			for _, path := range reads {
				if got := d.look(t, path, own); got.Status != http.StatusOK {
					t.Errorf("%s of %s is answered %d %s", path, name, got.Status, got.Body)
				}
				mustBeProblem(t, d.look(t, path, other), http.StatusNotFound, "not-found")
			}
		}
		d.separateLists(t, name, names[1-i], own)
	}
}

// merchantOf is the merchant of a charge.
func (d *deployment) merchantOf(t *testing.T, id string) string {
	t.Helper()
	return row[string](t, d, `select merchant_id from ledger_events where stream_id = $1 and version = 1`, id)
}

func runs(p *fleet.Process) bool {
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// ask sends a request as a merchant, by its API key.
func (d *deployment) ask(t *testing.T, r request, apiKey string) answer {
	t.Helper()
	r.header = http.Header{"Authorization": {"Bearer " + apiKey}}
	got, _, err := d.client.insist(context.WithoutCancel(t.Context()), r)
	if err != nil {
		t.Error(err)
	}
	return got
}

func (d *deployment) look(t *testing.T, path, apiKey string) answer {
	t.Helper()
	return d.ask(t, request{method: http.MethodGet, path: path}, apiKey)
}

// separateLists looks at all that a merchant is shown at once.
func (d *deployment) separateLists(t *testing.T, name, other, own string) {
	t.Helper()
	const sums = `
select account || ' ' || sum(debits) || ' ' || sum(credits)
  from (select left(debit, -4) as account, currency, amount as debits, 0 as credits
          from ledger_postings
         where merchant_id = $1
         union all
        select left(credit, -4), currency, 0, amount
          from ledger_postings
         where merchant_id = $1) as legs
 group by account, currency`
	for _, path := range []string{"/v1/balances", "/v1/charges", "/v1/inbox", "/v1/inbox?status=discarded"} {
		got := d.look(t, path, own)
		if got.Status != http.StatusOK || bytes.Contains(got.Body, []byte(":"+other)) {
			t.Errorf("%s shows %s, without an account of %s: %d %s", path, name, other, got.Status, got.Body)
		}
		for _, id := range regexp.MustCompile(`ch_[0-9a-f]{32}`).FindAllString(string(got.Body), looks) {
			if owner := row[string](t, d, `select coalesce(max(merchant_id), 'no merchant') from ledger_events where stream_id = $1`, id); owner != name {
				t.Errorf("%s shows %s the charge %s of %s", path, name, id, owner)
			}
		}
		if path != "/v1/balances" {
			continue
		}
		shown := []string{}
		for _, b := range balancesOf(t, got) {
			shown = append(shown, spaced(b.Account, b.Debits, b.Credits))
		}
		want := append([]string{}, rows[string](t, d, sums, name)...)
		slices.Sort(shown)
		slices.Sort(want)
		if diff := cmp.Diff(want, shown); diff != "" {
			t.Errorf("the balances of %s (-posted +shown):\n%s", name, diff)
		}
	}
}

// balance is what the API shows of an account.
type balance struct {
	Account  string `json:"account"`
	Currency string `json:"currency"`
	Debits   int64  `json:"debits"`
	Credits  int64  `json:"credits"`
	Balance  int64  `json:"balance"`
}

func balancesOf(t *testing.T, got answer) []balance {
	t.Helper()
	var page struct {
		Data []balance `json:"data"`
	}
	if err := json.Unmarshal(got.Body, &page); err != nil {
		t.Errorf("the balances are answered %d %s", got.Status, got.Body)
	}
	return page.Data
}
