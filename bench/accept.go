package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// acceptOverHTTP measures the api alone: nobody carries what it accepts.
func acceptOverHTTP(ctx context.Context, s *stage, set setting) (Sample, error) {
	set.InFlight = httpConnections
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	sample, err := counting(ctx, w.database, func() (window, error) { return w.accepting(ctx, &Resident{}) })
	if err != nil {
		return Sample{}, err
	}
	if err := s.tellStatements(ctx, w.database); err != nil {
		return Sample{}, err
	}
	return sample, w.checkAccepted(ctx, w.flow.ended)
}

// accepting runs the api alone, and looks at its memory.
func (w *world) accepting(ctx context.Context, memory *Resident) (seen window, err error) {
	apis, err := w.apis(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, finish(ctx, apis...)) }()
	l, look := w.acceptingOnly(urls(apis), users(w.server.postmaster, pids(apis)...)), residents(apis[0].PID())
	seen, err = w.flow.drive(ctx, l)
	*memory = look()
	seen.Total = w.flow.ended
	return seen, errors.Join(err, w.flow.check())
}

// acceptingOnly is a load of charges that end when they are accepted.
func (w *world) acceptingOnly(urls []string, use func() usage) load {
	l := w.sending(urls, use)
	send := l.send
	l.send = func(ctx context.Context, id string) error {
		defer w.flow.end(id)
		return send(ctx, id)
	}
	return l
}

const countAccepted = `
select (select count(*) from idempotency_keys),
       (select count(*) from ledger_events),
       (select count(*) from ledger_events where version = 1),
       (select count(*) from outbox)`

// holdings are what the tables hold of what was accepted.
type holdings struct{ keys, events, charges, messages int }

func (w *world) holdings(ctx context.Context) (h holdings, err error) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return h, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, countAccepted).Scan(&h.keys, &h.events, &h.charges, &h.messages); err != nil {
		return h, fmt.Errorf("count what was accepted: %w", err)
	}
	return h, nil
}

func (w *world) checkAccepted(ctx context.Context, accepted int) error {
	return w.checkAcceptedSince(ctx, holdings{}, accepted)
}

// checkAcceptedSince compares what the tables hold more than before with what was
// accepted.
func (w *world) checkAcceptedSince(ctx context.Context, before holdings, accepted int) error {
	now, err := w.holdings(ctx)
	if err != nil {
		return err
	}
	more := holdings{
		keys: now.keys - before.keys, events: now.events - before.events,
		charges: now.charges - before.charges, messages: now.messages - before.messages,
	}
	if want := (holdings{accepted, accepted, accepted, accepted}); more != want {
		return fmt.Errorf("%d accepted: %d keys, %d events of %d charges, %d messages",
			accepted, more.keys, more.events, more.charges, more.messages)
	}
	return nil
}

// replayOverHTTP accepts charges, and then measures the answers to the same
// requests.
func replayOverHTTP(ctx context.Context, s *stage, set setting) (Sample, error) {
	set.InFlight = httpConnections
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	charges := min(2000, s.sizes.backlog)
	if err := w.acceptSome(ctx, charges); err != nil {
		return Sample{}, err
	}
	sample, err := counting(ctx, w.database, func() (window, error) { return w.replaying(ctx, charges) })
	if err != nil {
		return Sample{}, err
	}
	if err := s.tellStatements(ctx, w.database); err != nil {
		return Sample{}, err
	}
	return sample, w.checkAccepted(ctx, charges)
}

func (w *world) acceptSome(ctx context.Context, charges int) (err error) {
	api, err := w.api(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finish(ctx, api)) }()
	c := newClient(api.URL())
	return together(charges, func(n int) error {
		_, err := c.charge(w.accounts[n%len(w.accounts)], replayedKey(n), n)
		return err
	})
}

func replayedKey(n int) string { return fmt.Sprintf("replayed-%06d", n) }

func (w *world) replaying(ctx context.Context, charges int) (seen window, err error) {
	api, err := w.api(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, finish(ctx, api)) }()
	c := newClient(api.URL())
	l := w.sending([]string{api.URL()}, users(w.server.postmaster, api.PID()))
	l.send = func(_ context.Context, id string) error {
		defer w.flow.end(id)
		n := rand.N(charges) //nolint:gosec // no secret
		replayed, err := c.charge(w.accounts[n%len(w.accounts)], replayedKey(n), n)
		if err == nil && !replayed {
			err = fmt.Errorf("charge %d was accepted twice", n)
		}
		return err
	}
	seen, err = w.flow.drive(ctx, l)
	seen.Total = w.flow.ended
	return seen, errors.Join(err, w.flow.check())
}
