package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"
)

// work is what is measured.
type work struct {
	name    string
	river   bool                    // River does it too
	workers int                     // of payonce, beside an api
	prepare func(*deployment) error // while an api runs
	// send sends a charge with this id, and returns when that has ended. It is nil at rest, where each figure is a second's.
	send  func(context.Context, *deployment, string) error
	check func(context.Context, *deployment) error
}

// works are measured in this order: accepted charges, each under a key of its own; requests under known
// keys; charges, each of which ends with its webhook; and programs at rest.
var works = []work{
	{"accept", false, 0, nil, send, checkAccepted},
	{"replay", false, 0, acceptReplayed, replay, checkAccepted},
	{"charges", true, 1, nil, process, checkCharges},
	{"idle", true, 1, nil, nil, checkAccepted},
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

// selectHoldings counts the charges and the keys.
const selectHoldings = `
select (select count(*) from ledger_events where version = 1),
       (select count(*) from idempotency_keys)`

// checkAccepted compares what the tables hold with what was accepted.
func checkAccepted(ctx context.Context, d *deployment) error {
	want := map[string]int{"accept": d.ended(), "replay": d.replayed}[d.work]
	var charges, keys int
	err := d.db.QueryRow(ctx, selectHoldings).Scan(&charges, &keys)
	if err == nil && (charges != want || keys != want) {
		err = fmt.Errorf("%d accepted; there are %d charges and %d keys", want, charges, keys)
	}
	return err
}

// checkCharges audits payonce's charges, and counts all of them.
func checkCharges(ctx context.Context, d *deployment) error {
	if d.by == byRiver {
		return countCharges(ctx, d)
	}
	audit, err := d.Audit(ctx)
	if violated := audit.Violated(); violated != "" {
		err = errors.Join(err, fmt.Errorf("payonce audit: violated: %s", violated))
	}
	return errors.Join(err, countCharges(ctx, d))
}

// What a charge that succeeded has.
const (
	eventsOfCharge   = 6 // requested, reserved, started, captured, succeeded, notified
	postingsOfCharge = 4
)

// selectCharges counts the keys, what succeeded, what was notified, the events, the
// postings, the reservations and the articles of charges.
const selectCharges = `
select array[(select count(*) from idempotency_keys),
             (select count(*) from ledger_events where type = 'charge.succeeded.v1'),
             (select count(*) from ledger_events where type = 'merchant.notified.v1'),
             (select count(*) from ledger_events) / $1::int,
             (select count(*) from ledger_postings) / $2::int,
             (select count(*) from reservations where status = 'sold'),
             (select sum(sold)::bigint from stock)]`

// countCharges compares what the tables, the provider and the merchant have with what was sent.
func countCharges(ctx context.Context, d *deployment) error {
	var stored []int
	if err := d.db.QueryRow(ctx, selectCharges, eventsOfCharge, postingsOfCharge).Scan(&stored); err != nil {
		return err
	}
	d.external.mu.Lock()
	defer d.external.mu.Unlock()
	captured, twice, webhooks, sent := len(d.external.captured), d.external.twice, len(d.external.webhooks), d.ended()
	if !slices.Equal(stored, slices.Repeat([]int{sent}, len(stored))) || captured != sent || webhooks != sent || twice > 0 {
		return fmt.Errorf("%d charges sent: keys, succeeded, notified, events, postings, reserved, sold %v; "+
			"the provider captured %d; the merchant received %d webhooks; %d captures and webhooks came once more", sent, stored, captured, webhooks, twice)
	}
	return nil
}
