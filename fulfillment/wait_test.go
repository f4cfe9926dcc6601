package fulfillment_test

import (
	"errors"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
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
