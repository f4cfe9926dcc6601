package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// work is what is measured.
type work struct {
	name    string
	river   bool                    // River does it too
	workers int                     // of payonce, beside an api
	prepare func(*deployment) error // while an api runs
	// send sends a charge with this id, and returns when that has ended. It is nil at rest, where each figure is a second's.
	send func(context.Context, *deployment, string) error
}

// works are measured in this order: accepted charges, each under a key of its own; requests under known
// keys; charges, each of which ends with its webhook; and programs at rest.
var works = []work{
	{"accept", false, 0, nil, send},
	{"replay", false, 0, acceptReplayed, replay},
	{"charges", true, 1, nil, process},
	{"idle", true, 1, nil, nil},
}

func workNamed(name string) work {
	return works[slices.IndexFunc(works, func(w work) bool { return w.name == name })]
}

// process sends a charge that ends when the merchant receives its webhook.
func process(ctx context.Context, d *deployment, id string) error {
	ended := d.external.expect(id)
	if err := send(ctx, d, id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for charge %s to end: %w", id, ctx.Err())
	}
}

// replay asks for the response to one of the charges that were accepted before.
func replay(_ context.Context, d *deployment, _ string) error {
	n := rand.N(d.replayed) //nolint:gosec // no secret
	replayed, err := d.charge(replayedKey(n), n)
	if err == nil && !replayed {
		err = fmt.Errorf("charge %d was accepted twice", n)
	}
	return err
}

func replayedKey(n int) string { return fmt.Sprintf("replayed-%06d", n) }

func acceptReplayed(d *deployment) error {
	g := errgroup.Group{}
	g.SetLimit(connections)
	for n := range d.replayed {
		g.Go(func() error {
			_, err := d.charge(replayedKey(n), n)
			return err
		})
	}
	return g.Wait()
}

// What a charge that succeeded has beside its request.
const (
	eventsOfCharge   = 5 // reserved, started, captured, succeeded, notified
	postingsOfCharge = 3 // of the capture
)

// selectHoldings counts the keys, the requests and their postings; and of the charges that ended what succeeded, what
// was notified, the other events and postings, the reservations and the articles.
const selectHoldings = `
select array[(select count(*) from idempotency_keys),
             (select count(*) from ledger_events where version = 1),
             (select count(*) from ledger_postings where version = 1),
             (select count(*) from ledger_events where type = 'charge.succeeded.v1'),
             (select count(*) from ledger_events where type = 'merchant.notified.v1'),
             (select count(*) from ledger_events where version > 1),
             (select count(*) from ledger_postings where version > 1),
             (select count(*) from reservations where status = 'sold'),
             (select sum(sold)::bigint from stock)]`

// check audits payonce's charges, and compares what the tables, the provider and the merchant have with what was sent.
func (d *deployment) check(ctx context.Context) (err error) {
	accepted, ended := d.ended(), 0
	switch d.work {
	case "replay":
		accepted = d.replayed
	case "charges":
		ended = accepted
	}
	if d.work == "charges" && d.by != byRiver {
		var audit harness.Audit
		if audit, err = d.Audit(ctx); err == nil && !audit.OK {
			err = fmt.Errorf("payonce audit: violated: %s", audit.Violated())
		}
	}
	var stored []int
	if unread := d.db.QueryRow(ctx, selectHoldings).Scan(&stored); unread != nil {
		return errors.Join(err, unread)
	}
	d.external.mu.Lock()
	defer d.external.mu.Unlock()
	captured, twice, webhooks := len(d.external.captured), d.external.twice, len(d.external.webhooks)
	want := []int{accepted, accepted, accepted, ended, ended, eventsOfCharge * ended, postingsOfCharge * ended, ended, ended}
	if !slices.Equal(stored, want) || captured != ended || webhooks != ended || twice > 0 {
		err = errors.Join(err, fmt.Errorf("%d charges accepted, %d ended: keys, requests, their postings, succeeded, notified, "+
			"events, postings, reserved, sold %v, want %v; the provider captured %d; the merchant received %d webhooks; "+
			"%d captures and webhooks came once more", accepted, ended, stored, want, captured, webhooks, twice))
	}
	return err
}
