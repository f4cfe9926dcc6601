package fulfillment_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// memory is a worker without a database: the handlers run as they are, on one stream, ch_1, whose
// versions refuse what the database's constraints would refuse.
type memory struct {
	groupcommit.DB // nil: nothing but Commit is asked of it

	t        *testing.T
	stream   ledger.Stream
	now      time.Time        // of the database
	stock    map[string]int64 // what is available
	sent     []sentMessage
	metadata map[string]string // of the messages that are delivered
	lost     bool              // another holder has taken the message over
	losing   bool              // other writers are first at every commit
	doubtful bool              // the next commit is durable, and is cut
	refusing string            // the constraint that refuses the next commit
	stop     func(error)       // ends the context of the delivery
	endpoint merchants.Endpoint
	on       *fulfillment.Fulfillment
}

// sentMessage is a message by its receiver and type, its ordering key and its metadata.
type sentMessage struct{ to, key, metadata string }

func newMemory(t *testing.T, services fulfillment.Services, history ...domain.Event) *memory {
	t.Helper()
	m := &memory{t: t, stream: ledger.New("ch_1"), now: nine, stock: map[string]int64{"mug": 5, "tshirt": 10}}
	m.on = fulfillment.NewOn(m, services, slog.New(slog.DiscardHandler))
	if len(history) > 0 { // else it is to be opened
		m.append(history...)
	}
	return m
}

// append adds events, as another writer would, whether the charge allows them or not.
func (m *memory) append(events ...domain.Event) {
	m.t.Helper()
	for _, e := range opened(m.t, events) {
		m.store(uuid.NewSHA1(uuid.Nil, []byte(strconv.Itoa(m.stream.Charge.Version))), e)
	}
}

func (m *memory) store(id uuid.UUID, e domain.Event) {
	m.stream.Charge = domain.Fold(m.stream.Charge, e)
	m.stream.Events = append(slices.Clip(m.stream.Events), ledger.StoredEvent{
		ID: id, Version: m.stream.Charge.Version, Type: domain.TypeOf(e), Event: e, OccurredAt: m.now, RecordedAt: m.now,
	})
}

// opened gives a first event the steps of this program.
func opened(t *testing.T, events []domain.Event) []domain.Event {
	t.Helper()
	first, opens := events[0].(domain.ChargeRequested)
	if !opens || first.PaymentMethod == "" { // a forged one
		return events
	}
	open, err := domain.Open(first)
	testrun.Must(t, err)
	return append(open, events[1:]...)
}

// Load returns the stream.
func (m *memory) Load(_ context.Context, id string) (ledger.Stream, error) {
	if id != m.stream.ID || len(m.stream.Events) == 0 {
		return ledger.New(id), fmt.Errorf("load stream %s: %w", id, ledger.ErrNotFound)
	}
	return m.stream, nil
}

// Endpoint returns the endpoint of the merchant, if there is one.
func (m *memory) Endpoint(context.Context, string) (merchants.Endpoint, error) {
	if m.endpoint.URL == "" {
		return m.endpoint, merchants.ErrNoWebhook
	}
	return m.endpoint, nil
}

// Available returns the stock.
func (m *memory) Available(sku string) (int64, bool) {
	left, known := m.stock[sku]
	return left, known
}

// Commit stores the events and messages of a batch, or none. Each webhook event must have its message.
func (m *memory) Commit(_ context.Context, b *pgx.Batch) error {
	if constraint := m.refusing; constraint != "" {
		if m.refusing = ""; constraint != "inbox_one_first_per_key" { // what was read as available is gone
			delete(m.stock, "tshirt")
		}
		return refusal(constraint)
	}
	before, sent := m.stream, m.sent
	var outcomes, announced []any
	for _, q := range b.QueuedQueries {
		switch a := q.Arguments; {
		case strings.Contains(q.SQL, "insert into ledger_events\n"):
			id, _ := a[0].([16]byte)
			name, _ := a[3].(string)
			data, _ := a[6].([]byte)
			event, err := domain.Decode(name, data)
			if err != nil || a[2] != m.stream.Charge.Version+1 || m.losing {
				m.stream = before
				return errors.Join(err, refusal("ledger_events_version_once"))
			}
			if m.store(id, event); a[4] == true {
				outcomes = append(outcomes, name)
			}
		case strings.Contains(q.SQL, "with incoming as"):
			sent = append(sent, sentMessage{fmt.Sprint(a[0], " ", a[4]), fmt.Sprint(a[2]), fmt.Sprint(a[6])})
			if a[0] == fulfillment.NotificationReceiver {
				announced = append(announced, a[4])
			}
		case strings.Contains(q.SQL, "done_fence") && m.lost:
			m.stream, m.lost = before, false
			return refusal("inbox_done_by_holder")
		}
	}
	if !slices.Equal(announced, outcomes) {
		return fmt.Errorf("the messages are about %v, the webhook events are %v", announced, outcomes)
	}
	if m.sent = sent; m.doubtful {
		m.doubtful = false
		return groupcommit.ErrUnknown
	}
	return nil
}

func refusal(constraint string) error {
	return &pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR", ConstraintName: constraint}
}

// deliver delivers the message about the newest event of a type, of any request where it is empty, or of any outcome
// where it is that of a resend. A type that the stream does not have is that of an event of the provider.
func (m *memory) deliver(messageType string) error {
	m.t.Helper()
	ctx, stop := context.WithCancelCause(m.t.Context())
	defer stop(nil)
	m.stop = stop
	version := 0
	for _, e := range m.stream.Events {
		kind := domain.EventTypeNamed(e.Type)
		if messageType == e.Type || messageType == "" && kind.Request || messageType == fulfillment.TypeResend && kind.Webhook != "" {
			version = e.Version
		}
	}
	return m.deliverAbout(ctx, messageType, version)
}

// deliverAbout delivers the message about the event at a version, or at version 0 one of a type.
func (m *memory) deliverAbout(ctx context.Context, messageType string, version int) error {
	d := &inbox.Delivery{ClaimedAt: m.now, Message: inbox.Message{
		ID: "m_1", Type: messageType, OrderingKey: m.stream.ID, Payload: []byte("{}"), Metadata: m.metadata,
	}}
	if version > 0 {
		e := m.stream.At(version)
		d.ID, d.OrderingKey, d.Payload = e.ID.String(), domain.OrderingKey(m.stream.ID, e.Event), m.stream.EncodeEnvelope(e)
		if messageType != fulfillment.TypeResend {
			d.Type = e.Type
		}
	}
	return m.receive(ctx, d)
}

// receive delivers a message to its receiver. A webhook that was never received is sent again by the receiver of webhooks.
func (m *memory) receive(ctx context.Context, d *inbox.Delivery) error {
	to := fulfillment.ChargeReceiver
	switch resend := d.Type == fulfillment.TypeResend; {
	case resend && len(m.stream.Charge.Unnotified) == 0:
		to = fulfillment.ResendReceiver
	case resend || domain.EventTypeNamed(d.Type).Webhook != "":
		to = fulfillment.NotificationReceiver
	}
	return handlerOf(m.on, to)(ctx, d)
}

// said is what a delivery has recorded from a version on, what it has sent to refunds, and how it ended.
func (m *memory) said(from, sent int, err error) string {
	var words []string
	for _, e := range m.stream.Events[min(from, len(m.stream.Events)):] {
		word, _, _ := strings.Cut(e.Type, ".v")
		if failed, ok := e.Event.(domain.ChargeFailed); ok {
			word += "(" + string(failed.Code) + ")"
		}
		words = append(words, word)
	}
	for _, s := range m.sent[sent:] {
		if s.to == fulfillment.ChargeReceiver+" "+fulfillment.TypeRefundEnded {
			words = append(words, "wakes "+s.key)
		}
	}
	if end := endOf(err); end != "done" {
		words = append(words, end)
	}
	return strings.NewReplacer(
		"payment.captured charge.succeeded", "captured", "payment.declined inventory.released charge.failed", "declined",
	).Replace(strings.Join(words, " "))
}

var longWaits sync.Map // their times

// endOf is what the result of a handler means to the inbox.
func endOf(err error) string {
	wait, waits := errors.AsType[*inbox.WaitError](err)
	_, dead := errors.AsType[*inbox.DeadLetterError](err)
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, groupcommit.ErrUnknown):
		return "doubt"
	case inbox.IsLost(err):
		return "lost"
	case dead:
		return "dead"
	case waits && wait.NeedsOperator:
		return "blocked"
	case waits && wait.NoDeadline:
		return "polls"
	case waits && wait.AtLeast >= time.Hour:
		return "waits " + wait.AtLeast.String()
	case waits && wait.AtLeast > 500*time.Second && wait.AtLeast <= 625*time.Second: // and up to a quarter more, not all at one moment
		if _, again := longWaits.LoadOrStore(wait.AtLeast, true); again {
			return "waits as long as another"
		}
		return "waits 500s"
	case waits:
		return "waits"
	default:
		return err.Error()
	}
}

func handlerOf(f *fulfillment.Fulfillment, receiver string) inbox.Handler {
	for _, r := range f.Receivers() {
		if r.Name == receiver {
			return r.Handle
		}
	}
	return nil
}
