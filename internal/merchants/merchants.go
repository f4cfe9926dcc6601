// Package merchants keeps the accounts of those who charge, and their API keys.
// It owns merchants and api_keys.
//
// It promises that a raw key is stored nowhere: a request is authenticated by
// the SHA-256 of what it carries. A malformed key, an unknown, an expired and a
// revoked one are refused in the same way, in database time, from the next
// request on. What a request with a known key may do is said by the scopes of
// the key, which the caller has to ask about.
//
// It does not promise that the beginning of a key (Prefix) is unique, or secret.
package merchants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Merchant is an account as a request sees it.
type Merchant struct {
	ID             string
	FeeBasisPoints int64
	FeeFixed       map[string]int64 // currency → minor units
	HasWebhook     bool
	Scopes         []Scope // of the key that the request came with; Register does not look
}

// May tells whether the key of the request has a scope.
func (m Merchant) May(s Scope) bool { return slices.Contains(m.Scopes, s) }

// Webhook is where a merchant wants to be told.
type Webhook struct {
	URL    string
	Secret string // Standard Webhooks, whsec_…
}

const selectWebhook = `
select webhook_url,
       webhook_secret
  from merchants
 where merchant_id = $1
   and webhook_url is not null`

// ErrNoWebhook is returned by ReadWebhook for a merchant without an endpoint.
var ErrNoWebhook = errors.New("the merchant has no webhook endpoint")

// ReadWebhook reads a merchant's endpoint.
func ReadWebhook(ctx context.Context, q postgres.Querier, merchant string) (Webhook, error) {
	var w Webhook
	err := q.QueryRow(ctx, selectWebhook, merchant).Scan(&w.URL, &w.Secret)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, ErrNoWebhook
	}
	if err != nil {
		return w, fmt.Errorf("read the webhook of %s: %w", merchant, err)
	}
	return w, nil
}

const upsertMerchant = `
insert into merchants
       (merchant_id, fee_basis_points, fee_fixed, webhook_url, webhook_secret)
values ($1, $2, $3, nullif($4, ''), nullif($5, ''))
on conflict (merchant_id) do update
   set webhook_url    = coalesce(excluded.webhook_url, merchants.webhook_url),
       webhook_secret = coalesce(excluded.webhook_secret, merchants.webhook_secret)`

// Register queues an account. An account that exists keeps its fees, and takes
// the endpoint if one is given; so it may be queued again.
func Register(b *pgx.Batch, m Merchant, w Webhook) error {
	if m.FeeFixed == nil {
		m.FeeFixed = map[string]int64{}
	}
	fixed, err := json.Marshal(m.FeeFixed)
	if err != nil {
		return fmt.Errorf("encode the fees of %s: %w", m.ID, err)
	}
	b.Queue(upsertMerchant, m.ID, m.FeeBasisPoints, fixed, w.URL, w.Secret)
	return nil
}
