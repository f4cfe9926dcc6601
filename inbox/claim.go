package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// minDeathsOfSuspected is how many deaths in a row make a suspected poison message: one that
	// kills its process dies with every holder, one that runs beside it with some. With every
	// further death half as many suspected ones are tried at a time, from the eighth on a single
	// one, so a poison message takes no other message with it more than eight times. Claims
	// and the index inbox_suspected_poison see a row before its next claim, hence one less.
	minDeathsOfSuspected = 3
	// maxWeight bounds the weights of the suspected poison messages that one process tries at a time.
	maxWeight = 32
)

// weight is 0 if the message is not suspected, 1 once it is, and doubles with each
// death.
func (d *Delivery) weight() int {
	if d.deaths < minDeathsOfSuspected {
		return 0
	}
	return min(maxWeight, 1<<min(d.deaths-minDeathsOfSuspected, 16))
}

// A message may be committed later than its due time, so the bound of a claim stays
// claimOverlap before the present. Once every fullScanEvery a claim scans in full, without a
// bound.
const (
	claimOverlap  = 100 * time.Millisecond
	fullScanEvery = time.Second
)

// claim claims messages for free slots, starts their handlers, and returns how many slots
// are left and how long the next claim can wait: not at all if more may be due. A claim
// counts the attempt and commits before the handler starts. It is not canceled with ctx:
// a claim that commits unseen would keep its messages until their leases expire.
//
// If we die here: the rows are claimed again when their leases expire. Test:
// TestLease/a_message_of_a_silent_holder_is_taken_over,_and_the_holder_loses_its_whole_commit.
func (r *run) claim(ctx context.Context, slots int) (left int, next time.Duration, err error) {
	ctx = context.WithoutCancel(ctx)
	full := time.Since(r.scannedAt) >= fullScanEvery //nolint:forbidigo // it decides only how much is read
	if full {
		if slots, err = r.claimSuspected(ctx, slots); err != nil {
			return slots, 0, fmt.Errorf("claim suspected poison messages: %w", err)
		}
	}
	if slots, err = r.claimHeldBack(ctx, slots); err != nil {
		return slots, 0, fmt.Errorf("claim messages that are held back: %w", err)
	}
	if slots, next, err = r.claimDue(ctx, slots, full); err != nil {
		return slots, 0, fmt.Errorf("claim due messages: %w", err)
	}
	return slots, next, nil
}

// claimSuspected corrects due times and claims suspected poison messages.
func (r *run) claimSuspected(ctx context.Context, slots int) (left int, err error) {
	rows, weight := r.runningRows()
	p := r.Policy
	b := &pgx.Batch{}
	b.Queue(correctDueTimes, r.Receiver, p.longest(), p.Lease, correctAtMost)
	found := r.queueClaim(b, claimPoison, slots, rows, p.BackoffBase.Seconds(), p.BackoffCap.Seconds(), maxWeight-weight)
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, err
	}
	return slots - r.startClaimed(ctx, found), nil
}

// claimHeldBack leaves one slot to what is due. With a single slot they take turns.
func (r *run) claimHeldBack(ctx context.Context, slots int) (left int, err error) {
	n := slots - 1
	if slots == 1 {
		n = rand.IntN(2) //nolint:gosec // it is no secret
	}
	partitions, above, shares := r.slots.heldBackShares(n)
	if len(partitions) == 0 {
		return slots, nil
	}
	b := &pgx.Batch{}
	found := r.queueClaim(b, claimHeldBack, n, partitions, above, shares, r.Policy.DeadLetters == Pass)
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, err
	}
	for _, d := range found.claimed {
		r.slots.holdBack(d.Partition, d.row)
	}
	for _, d := range found.skipped {
		r.slots.advance(d.Partition, d.row)
	}
	return slots - r.startClaimed(ctx, found), nil
}

// claimDue claims what is due at or after dueFrom, in a full scan what is due at any time,
// and while the cursor is active what is due behind the last claim's window.
func (r *run) claimDue(ctx context.Context, slots int, full bool) (left int, next time.Duration, err error) {
	from := r.dueFrom
	if full {
		from = time.Time{}
	}
	behind := r.cursor
	if !r.cursor.active() {
		behind = scanCursor{dueAt: from}
	}
	rows, _ := r.runningRows()
	p := r.Policy
	partitions, shares, others := r.slots.shares(slots)
	read := slots
	if slots > 0 && r.slots.holdsBack() { // many of a partition may stand before the others
		read = max(slots, heldBackPage)
	}
	var now time.Time
	var nextDue, firstDue *time.Time
	var heldBack []string
	b := &pgx.Batch{}
	found := r.queueClaim(b, claimDue, slots, rows, p.BackoffBase.Seconds(), p.BackoffCap.Seconds(), p.DeadLetters == Pass,
		behind.dueAt, read, partitions, shares, others, behind.row, behind.until)
	b.Queue(readDueTimes, r.Receiver, from, full).QueryRow(func(row pgx.Row) error {
		return row.Scan(&now, &nextDue, &firstDue, &heldBack)
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, 0, err
	}
	r.dueFrom = now.Add(-claimOverlap)
	if firstDue != nil && firstDue.Before(r.dueFrom) {
		r.dueFrom = *firstDue
	}
	next = quietPoll
	if full {
		r.scannedAt = time.Now() //nolint:forbidigo // it decides only how much is read
		r.slots.setHeldBack(heldBack)
	}
	for _, p := range found.skipped {
		r.cursor = r.cursor.advance(p, now)
	}
	left = slots - r.startClaimed(ctx, found)
	switch {
	case len(found.claimed)+len(found.heldBack) >= slots:
		return left, 0, nil // more may be due
	case full && len(heldBack) > 0 || r.cursor.active() || r.slots.isScanning():
		next = r.MinClaimInterval
	case !full || r.slots.holdsBack() || firstDue != nil && !firstDue.After(now):
		// A message may be due that waits for something else than its time, or that a scan
		// with a bound has missed.
		next = slowPoll
	}
	if nextDue != nil {
		next = min(next, nextDue.Sub(now))
	}
	return left, next, nil
}

// scanCursor is the position behind which the next claim reads, after a window held fewer
// messages than the claim could take. The scan ends with what was due when it began, so that
// the messages before the cursor are soon read again.
type scanCursor struct {
	dueAt time.Time
	row   int64
	until *time.Time // nil: no scan has begun
}

func (c scanCursor) active() bool { return c.until != nil }

// advance is the cursor after a claim at a time that has skipped messages.
func (c scanCursor) advance(skipped *Delivery, now time.Time) scanCursor {
	switch {
	case skipped.row == 0:
		return scanCursor{}
	case !c.active():
		c.until = &now
	}
	c.dueAt, c.row = skipped.ClaimedAt, skipped.row
	return c
}

// found is what a claim has found. What it has skipped is no message: row is the position, or 0
// at the end.
type found struct {
	claimed, heldBack, skipped []*Delivery
}

// queueClaim queues a claim of at most n messages. Once the batch is committed, it returns
// what the claim has found.
func (r *run) queueClaim(b *pgx.Batch, claim string, n int, args ...any) *found {
	f := &found{}
	b.Queue(claim, append([]any{r.Receiver, n, r.Holder, r.Policy.Lease}, args...)...).Query(func(rows pgx.Rows) error {
		*f = found{}
		for rows.Next() {
			if err := f.scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return f
}

// startClaimed starts the handlers of what was claimed, notes what was held back, and
// returns how many slots are used.
func (r *run) startClaimed(ctx context.Context, f *found) int {
	for _, d := range f.heldBack {
		r.slots.holdBack(d.Partition, 0)
	}
	r.slots.assign(f.claimed)
	r.start(ctx, f.claimed)
	return len(f.claimed)
}

func (f *found) scan(row pgx.Row) error {
	d := &Delivery{}
	var what string
	var metadata []byte
	err := row.Scan(&what, &d.row, &d.fence, &d.Attempt, &d.deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition,
		&d.Payload, &metadata, &d.ClaimedAt)
	if json.Unmarshal(metadata, &d.Metadata) != nil {
		// Another program's, or not strings. The claim commits for all of its rows, so the
		// content of one row must not lose the others.
		d.Metadata = nil
	}
	switch what {
	case "held back":
		f.heldBack = append(f.heldBack, d)
	case "skipped":
		f.skipped = append(f.skipped, d)
	default:
		f.claimed = append(f.claimed, d)
	}
	return err
}
