package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Envelope is what the inbox needs to know of a message beside its id and
// payload. It is read from the message and must not depend on anything else.
type Envelope struct {
	Type        string
	OrderingKey string // the message's id where empty; see Receive for one that is too long
}

// Receive returns a function that stores a page of messages for the receiver of p, in a
// transaction of its own. The caller acknowledges the page to its transport when the
// function has returned nil: the messages are durable then, and a page that is
// delivered again changes nothing but the count of duplicates. An error acknowledges
// nothing: the transport delivers the page again.
//
// While p runs, a message for which it has a free slot is stored as claimed and is
// handled as soon as the commit is confirmed. The others wait for a claim.
//
// A page takes whatever a transport can hold, since what could not be stored would block
// it for ever. An ordering key beyond MaxLength, or one that is no text, is stored as
// "sha256:" and the hexadecimal hash of it; the same messages are of one key then as
// before. A message for which envelope returns false is passed over.
//
// told, where set, is called with what became of each page that was stored.
//
// If we die here: before the commit nothing is stored, and after it nothing is
// acknowledged; the page is delivered again. What was stored as claimed and did not
// start is claimed again when its lease ends. Tests: TestACutPageIsReceivedOnce,
// TestReceive/what_a_process_stored_and_did_not_start_is_taken_over.
func (p *Processor) Receive(envelope func(*message.Message) (Envelope, bool), told func(Reception)) func(context.Context, []*message.Message) error {
	return func(ctx context.Context, messages []*message.Message) error {
		page, err := pageOf(messages, envelope)
		if err != nil || len(page) == 0 {
			return err
		}
		r := p.state()
		reserved := r.reserve(page)
		reception, err := r.store(ctx, page, reserved)
		if postgres.Constraint(err) == "inbox_one_running_per_key" {
			// A message of one of the keys started at the same moment, elsewhere.
			r.withdraw(len(reserved))
			reception, err = r.store(ctx, page, nil)
		}
		if err != nil {
			return err
		}
		if told != nil {
			told(reception)
		}
		return nil
	}
}

// store commits a page, and then starts what was stored as running. It gives back the
// slots that nothing was started in.
func (r *run) store(ctx context.Context, page []delivery, reserved map[string]bool) (reception Reception, err error) {
	var started []claimed
	left := false
	b := &pgx.Batch{}
	queueStore(b, r.Receiver, page, slotsFor{
		holder: r.Holder, lease: r.Policy.Lease, passes: r.Policy.Parked == Pass, messages: reserved,
	}, func(layer []delivery, kept []storedRow) {
		reception.count(layer, kept)
		messages := make(map[string]Message, len(layer))
		for _, d := range layer {
			messages[d.message.ID] = d.message
		}
		for _, k := range kept {
			if k.Started {
				started = append(started, claimed{
					Delivery:  Delivery{Message: messages[k.MessageID], Attempt: 1, row: k.ID, fence: 1, claimed: k.At},
					onReceipt: true,
				})
			}
			left = left || k.New && !k.Started
		}
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		if postgres.Constraint(err) != "inbox_one_running_per_key" {
			r.withdraw(len(reserved))
		}
		return Reception{}, fmt.Errorf("receive %d messages for %s: %w", len(page), r.Receiver, err)
	}
	r.begin(ctx, started, len(reserved))
	if left {
		r.look()
	}
	return reception, nil
}

// pageOf are the deliveries of a page, in its order.
func pageOf(messages []*message.Message, envelope func(*message.Message) (Envelope, bool)) ([]delivery, error) {
	page := make([]delivery, 0, len(messages))
	for _, m := range messages {
		e, ours := envelope(m)
		if !ours {
			continue
		}
		d, err := deliver(Message{
			ID: m.UUID, Type: asText(e.Type), OrderingKey: indexable(e.OrderingKey), Payload: m.Payload, Metadata: m.Metadata,
		})
		if err != nil {
			return nil, err
		}
		page = append(page, d)
	}
	return page, nil
}

// indexable is an ordering key that the inbox can hold, one for each that there is.
func indexable(key string) string {
	if len(key) <= MaxLength && isText(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}
