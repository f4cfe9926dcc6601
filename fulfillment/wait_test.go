package fulfillment_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/ledger"
)

// TestProcessingWait_doublesItsReads is the arithmetic of the reads of a payment that a bank
// takes days for.
func TestProcessingWait_doublesItsReads(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	pause := func(at time.Time, recorded time.Time) time.Duration {
		wait, ok := errors.AsType[*inbox.WaitError](fulfillment.ProcessingWait(at, ledger.Stream{}, ledger.StoredEvent{RecordedAt: recorded}, nil))
		if !ok || !wait.NoDeadline || wait.AtLeast > inbox.LongestWait {
			t.Fatalf("after %s it waits %+v", at.Sub(recorded), wait)
		}
		return wait.AtLeast
	}

	for age, least := range map[time.Duration]time.Duration{
		-time.Second: time.Second, 0: time.Second, time.Minute: time.Minute, 3 * time.Hour: 3 * time.Hour, 72 * time.Hour: 4 * time.Hour,
	} {
		if got := pause(began.Add(age), began); got < least || got > least*5/4 {
			t.Errorf("after %s the next read is in %s, want %s and up to a quarter more", age, got, least)
		}
	}
	if got := pause(began, time.Time{}); got > 2*time.Second {
		t.Errorf("after an event of this delivery the next read is in %s", got)
	}

	late := ledger.Stream{Charge: domain.Charge{ExpiresAt: began.Add(time.Minute), Action: &domain.PaymentActionRequired{ExpiresAt: began.Add(50 * time.Second)}}}
	for age, want := range map[time.Duration]time.Duration{40 * time.Second: 10 * time.Second, 55 * time.Second: 5 * time.Second} {
		if wait, _ := errors.AsType[*inbox.WaitError](fulfillment.ProcessingWait(began.Add(age), late, ledger.StoredEvent{RecordedAt: began}, nil)); wait.AtLeast != want {
			t.Errorf("after %s it waits %s, want %s, until the deadline", age, wait.AtLeast, want)
		}
	}

	// Many payments that began together for days: what they cost once they are old.
	const payments, day = 10_000, 24 * time.Hour
	reads, first := 0, 0
	for range payments {
		for at := time.Duration(0); at < 3*day && first <= 25*payments; at += pause(began.Add(at), began) {
			reads++
			if at < day {
				first++
			}
		}
	}
	perSecond := float64(reads-first) / (2 * day).Seconds()
	t.Logf("%d reads of %d payments in three days; after the first day %.2f in a second", reads, payments, perSecond)
	if perSecond >= 1 || first > 25*payments {
		t.Errorf("%d payments cost %.2f reads a second, and %d in the first day", payments, perSecond, first)
	}
}

// TestProcessingWait_endsWithTheProvidersEvent: the next read would be in hours.
func TestProcessingWait_endsWithTheProvidersEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	isStarted(f)
	f.provider.on("retrieve", shows("processing"), shows("processing"), shows("succeeded"))
	defer f.process()()
	await.Row(t, f.db, `select waits = 1 and status = 'pending' from inbox`)
	f.exec(`update inbox set due_at = clock_timestamp() + interval '4 hours'`)
	f.event("evt_1", "payment_intent.processing")
	await.Row(t, f.db, `select string_agg(status, ' ' order by id) = 'pending pending' and max(waits) = 2 from inbox`)
	f.event("evt_2", "payment_intent.succeeded")
	await.Row(t, f.db, `select bool_and(status = 'done') and count(*) = 3 from inbox where receiver = 'fulfillment'`)
	want := succeeded(toStarted)
	want.Message = "done done done"
	f.expect(want, "retrieve retrieve retrieve")
}

// TestRefund_endsWithTheProvidersEvent: its own message does not wait for its next read.
func TestRefund_endsWithTheProvidersEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	isRefunding(f)
	f.provider.on("refund", gives("pending"))
	defer f.process()()
	await.Row(t, f.db, `select waits = 1 and status = 'pending' from inbox`)
	f.exec(`update inbox set due_at = clock_timestamp() + interval '4 hours'`)
	f.provider.on("refunds", lists(refundOf("succeeded")))
	f.event("evt_1", "refund.updated")
	await.Row(t, f.db, `select bool_and(status = 'done') and count(*) = 3 from inbox where receiver = 'fulfillment'`)
	f.expectText("ended:re_1 refund.ended re_1 acme",
		`select concat_ws(' ', message_id, type, ordering_key, partition_key) from inbox where receiver = 'fulfillment' order by id desc limit 1`)
	f.expect(back(refunded, "refund.succeeded", "done done done"), "refunds refund refunds")
}

// process handles the messages about charges until stop is called.
func (f *fixture) process() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})
	go func() {
		_ = processor(f.db, fulfillment.ChargeReceiver, f.charge, func(*inbox.Options) {}).Run(ctx)
		close(ended)
	}()
	return func() { cancel(); <-ended }
}
