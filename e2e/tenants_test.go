package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
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

// as is the request as a merchant makes it, by its API key.
func (r request) as(apiKey string) request {
	r.header = r.header.Clone()
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header["Authorization"] = []string{"Bearer " + apiKey}
	return r
}

// looks bounds how many charges of the other one each merchant asks for.
const looks = 3

// checkTenants looks that neither merchant is shown anything of the other's, and that
// the books of each are those of its own postings. It needs an api that still has
// its way to the database.
func (d *deployment) checkTenants(t *testing.T) {
	t.Helper()
	if d.oneMerchant || d.apiDatabase != nil || !slices.ContainsFunc(d.APIs, runs) {
		return
	}
	const ofMerchant = `
select distinct stream_id
  from ledger_events
 where merchant_id = $1`
	names := []string{merchant, neighbour}
	for i, name := range names {
		own, other := d.client.tenants.apiKeys[i], d.client.tenants.apiKeys[1-i]
		charges := rows[string](t, d, ofMerchant, name)
		for _, id := range charges[:min(len(charges), looks)] {
			for _, path := range []string{"", "/events", "/refunds"} {
				path = "/v1/charges/" + id + path
				if got := d.look(t, path, own); got.Status != http.StatusOK {
					t.Errorf("%s of %s is answered %d %s", path, name, got.Status, got.Body)
				}
				mustBeProblem(t, d.look(t, path, other), http.StatusNotFound, "not-found")
			}
			for _, path := range []string{"/cancel", "/refunds"} {
				r := request{path: "/v1/charges/" + id + path, key: "key-" + unique(), body: []byte("{}")}
				got, _, err := d.client.insist(context.WithoutCancel(t.Context()), r.as(other))
				if err != nil {
					t.Error(err)
				}
				mustBeProblem(t, got, http.StatusNotFound, "not-found")
			}
		}
		d.separateKeys(t, name, own, other)
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

func (d *deployment) look(t *testing.T, path, apiKey string) answer {
	t.Helper()
	r := request{method: http.MethodGet, path: path}.as(apiKey)
	got, _, err := d.client.insist(context.WithoutCancel(t.Context()), r)
	if err != nil {
		t.Error(err)
	}
	return got
}

// separateKeys looks at the idempotency keys that only this merchant has used.
func (d *deployment) separateKeys(t *testing.T, name, own, other string) {
	t.Helper()
	const keys = `
select key
  from idempotency_keys k
 where scope = $1
   and not exists (
         select
           from idempotency_keys o
          where o.scope <> k.scope
            and o.key = k.key)
   and key ~ '^[a-z0-9-]+$'
 limit 3`
	for _, key := range rows[string](t, d, keys, name) {
		path := "/v1/idempotency-keys/" + key
		if got := d.look(t, path, own); got.Status != http.StatusOK {
			t.Errorf("a key of %s is answered %d %s", name, got.Status, got.Body)
		}
		mustBeProblem(t, d.look(t, path, other), http.StatusNotFound, "not-found")
	}
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
 group by account, currency
 order by 1`
	var balances struct {
		Data []struct {
			Account string      `json:"account"`
			Debits  json.Number `json:"debits"`
			Credits json.Number `json:"credits"`
		} `json:"data"`
	}
	got := d.look(t, "/v1/balances", own)
	if err := json.Unmarshal(got.Body, &balances); err != nil {
		t.Errorf("the balances of %s are answered %d %s", name, got.Status, got.Body)
	}
	shown := []string{}
	for _, b := range balances.Data {
		shown = append(shown, b.Account+" "+b.Debits.String()+" "+b.Credits.String())
	}
	slices.Sort(shown)
	want := append([]string{}, rows[string](t, d, sums, name)...)
	slices.Sort(want)
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("the balances of %s (-posted +shown):\n%s", name, diff)
	}
	for _, path := range []string{"/v1/balances", "/v1/charges", "/v1/inbox", "/v1/inbox?status=discarded"} {
		got := d.look(t, path, own)
		if got.Status != http.StatusOK {
			t.Errorf("%s of %s is answered %d %s", path, name, got.Status, got.Body)
		}
		for _, id := range regexp.MustCompile(`ch_[0-9a-f]{32}`).FindAllString(string(got.Body), looks) {
			if owner := row[string](t, d, `select coalesce(max(merchant_id), 'no merchant') from ledger_events where stream_id = $1`, id); owner != name {
				t.Errorf("%s shows %s the charge %s of %s", path, name, id, owner)
			}
		}
		if bytes.Contains(got.Body, []byte(":"+other)) {
			t.Errorf("%s shows %s an account of %s: %s", path, name, other, got.Body)
		}
	}
}
