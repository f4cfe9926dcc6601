package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
)

// attemptPatience is after how long a client takes a request for lost.
const attemptPatience = 15 * time.Second

// merchantAt is the merchant's client of one api. It keeps no connection: the api
// may be another process the next time.
func (p *place) merchantAt(url string) *client {
	c := newClient([]string{url}, p.Secrets.API)
	c.http = &http.Client{Transport: once{&http.Transport{DisableKeepAlives: true}}, Timeout: attemptPatience}
	return c
}

// insist sends a request until it is answered for good, as every client has to,
// to the api whose address it asks for each time.
func (p *place) insist(ctx context.Context, url func(context.Context) (string, error), r request) (answer, error) {
	var last error
	for {
		at, err := url(ctx)
		if err != nil {
			return answer{}, errors.Join(err, last)
		}
		got, err := p.merchantAt(at).do(ctx, r)
		if err == nil && definitive(got) {
			return got, nil
		}
		last = fmt.Errorf("answered %d %s: %w", got.Status, got.Body, err)
		if err == nil {
			last = fmt.Errorf("answered %d %s", got.Status, got.Body)
		}
		if ctx.Err() != nil {
			return answer{}, errors.Join(ctx.Err(), last)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// direct is the api that nothing happens to.
func (p *place) direct(context.Context) (string, error) { return p.api.URL(), nil }

// accept has a charge accepted and returns its id.
func (p *place) accept(ctx context.Context, o order) (string, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	got, err := p.insist(ctx, p.direct, request{key: unique(), body: body})
	if err != nil {
		return "", err
	}
	var c charge
	if err := json.Unmarshal(got.Body, &c); err != nil || got.Status != http.StatusAccepted {
		return "", fmt.Errorf("a charge was answered %d %s: %w", got.Status, got.Body, err)
	}
	return c.ID, nil
}

// get reads what the api shows.
func (p *place) get(ctx context.Context, path string, into any) error {
	got, err := p.insist(ctx, p.direct, request{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(got.Body, into); err != nil {
		return fmt.Errorf("%s is answered %d %s: %w", path, got.Status, got.Body, err)
	}
	return nil
}

// differ complains of two answers to one request.
func differ(a, b answer) string {
	if a.Status != b.Status || !bytes.Equal(a.Body, b.Body) {
		return fmt.Sprintf("one key was answered %d %s and %d %s", a.Status, a.Body, b.Status, b.Body)
	}
	for _, name := range []string{"Content-Type", "Location", "Idempotency-Key", "Idempotency-Expires"} {
		if x, y := a.Header.Get(name), b.Header.Get(name); x != y {
			return fmt.Sprintf("one key was answered with %s %q and %q", name, x, y)
		}
	}
	return ""
}

// readJSON reads a document of the sandbox.
func readJSON(ctx context.Context, url, key string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is answered %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// audited is all that can be checked from outside: the tables, the provider's
// lists and the books, by the checks of `payonce audit`.
func (p *place) audited(ctx context.Context) (audit.Report, error) {
	report, err := audit.Run(ctx, p.db)
	if err != nil {
		return report, err
	}
	lists, err := audit.Reconcile(ctx, p.db, listed(ctx, p, "/v1/payment_intents", listedObject.intent), listed(ctx, p, "/v1/refunds", listedObject.refund))
	if err != nil {
		return report, err
	}
	report.Add(lists...)
	attempts, err := p.oneIntentPerAttempt(ctx)
	if err != nil {
		return report, err
	}
	report.Add(attempts)
	var books audit.Books
	if err := readJSON(ctx, p.Sandbox.URL()+"/books", p.Secrets.Provider, &books); err != nil {
		return report, err
	}
	told, err := audit.CompareBooks(ctx, p.db.Pool(), books)
	report.Add(told...)
	return report, err
}

// failedAttempts says how often the provider failed to make a charge's intent, each
// of which opened a new key.
const failedAttempts = `
select stream_id as charge,
       count(*) filter (where type = 'payment.attempt_failed.v1' and data ->> 'stage' = 'create') as failed
  from ledger_events
 group by stream_id`

// oneIntentPerAttempt compares the provider's list with the attempts in the ledger.
// An intent too many takes no money, so the audit accepts it of a real provider,
// which forgets keys; the sandbox forgets none.
func (p *place) oneIntentPerAttempt(ctx context.Context) (audit.Check, error) {
	check := audit.Check{Name: "provider: one payment intent per attempt"}
	made := map[string]int64{}
	for intent, err := range listed(ctx, p, "/v1/payment_intents", listedObject.intent) {
		if err != nil {
			return check, err
		}
		made[intent.Reference]++
	}
	rows, err := p.db.Query(ctx, failedAttempts)
	if err != nil {
		return check, err
	}
	var charge string
	var failed int64
	_, err = pgx.ForEachRow(rows, []any{&charge, &failed}, func() error {
		check.Checked++
		if made[charge] > 1+failed {
			check.Violated++
			check.Examples = append(check.Examples, fmt.Sprintf("%s: %d payment intents, %d failed attempts", charge, made[charge], failed))
		}
		return nil
	})
	return check, err
}
