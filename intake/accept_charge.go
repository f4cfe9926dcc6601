package intake

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// Charge is a request for a charge: validated, and in the form that is
// fingerprinted.
type Charge struct {
	OrderID       string            `json:"order_id"`
	Amount        int64             `json:"amount"` // minor units
	Currency      string            `json:"currency"`
	PaymentMethod string            `json:"payment_method"`
	Items         []Item            `json:"items,omitempty"`
	Description   string            `json:"description,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// Item is a quantity of one article.
type Item = domain.Item

// AcceptCharge accepts a charge: one read when the key has its answer, one read
// and one commit when it is new. Errors: idempotency.ErrReused and ErrExpired,
// ErrInFlight, ErrUnavailable, domain.ErrInvalid.
func (in *Intake) AcceptCharge(ctx context.Context, account Account, r Request, c Charge) (Accepted, error) {
	random, err := uuid.NewV7() // time-ordered, so that new streams share index pages
	if err != nil {
		return Accepted{}, fmt.Errorf("make a charge id: %w", err)
	}
	id := "ch_" + compact(random)
	return in.once(ctx, r, func(b *pgx.Batch, now, expires time.Time) (idempotency.Answer, error) {
		return acceptCharge(b, account, r, c, id, now, expires)
	})
}

// acceptCharge queues the whole decision: claim, event, postings, message.
func acceptCharge(b *pgx.Batch, account Account, r Request, c Charge, id string, now, expires time.Time) (idempotency.Answer, error) {
	s := ledger.New(id)
	events, err := domain.Decide(s.Charge, domain.RequestCharge{
		MerchantID:    account.MerchantID,
		OrderID:       c.OrderID,
		Amount:        domain.Money{Amount: c.Amount, Currency: domain.Currency(c.Currency)},
		Fees:          account.fees(),
		PaymentMethod: c.PaymentMethod,
		Items:         c.Items,
		Description:   c.Description,
		Metadata:      c.Metadata,
		Notify:        account.Notify,
	})
	if err != nil {
		return idempotency.Answer{}, err
	}
	now = now.Truncate(time.Millisecond)
	answer, err := accepted("/v1/charges/"+id, domain.Fold(s.Charge, events...).View(now))
	if err != nil {
		return answer, err
	}
	idempotency.Claim(b, r.Key, r.Fingerprint, answer, expires)
	cause := ledger.Cause{CorrelationID: r.ID, CausationID: r.ID, Actor: "api", At: now}
	s, err = ledger.Append(b, s, cause, events...)
	if err != nil {
		return answer, err
	}
	return answer, announce(b, s, r)
}

// announce queues the message that wakes the worker.
func announce(b *pgx.Batch, s ledger.Stream, r Request) error {
	payload, err := s.Seal(s.Head())
	if err != nil {
		return err
	}
	return outbox.Append(b, outbox.Message{
		Topic:       ledger.Topic,
		ID:          s.Head().ID.String(),
		Type:        s.Head().Type,
		OrderingKey: s.ID,
		Payload:     payload,
		Metadata: map[string]string{
			outbox.MetadataCorrelationID: r.ID,
			outbox.MetadataCausationID:   s.Head().ID.String(),
		},
	})
}

func accepted(location string, view any) (idempotency.Answer, error) {
	body, err := json.Marshal(view)
	if err != nil {
		return idempotency.Answer{}, fmt.Errorf("encode an answer: %w", err)
	}
	return idempotency.Answer{
		StatusCode:  http.StatusAccepted,
		ContentType: "application/json",
		Location:    location,
		Body:        append(body, '\n'),
	}, nil
}

func (a Account) fees() domain.FeeSchedule {
	fixed := make(map[domain.Currency]int64, len(a.FeeFixed))
	for currency, amount := range a.FeeFixed {
		fixed[domain.Currency(currency)] = amount
	}
	return domain.FeeSchedule{BasisPoints: a.FeeBasisPoints, Fixed: fixed}
}

// compact is a UUID as 32 hexadecimal digits.
func compact(id uuid.UUID) string { return hex.EncodeToString(id[:]) }
