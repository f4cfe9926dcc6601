// Package merchants keeps the accounts of those who charge, their API keys and
// their webhook secrets. It owns merchants, api_keys and webhook_secrets.
//
// It promises that a raw key is stored nowhere: a request is authenticated by
// the SHA-256 of what it carries. A malformed key, an unknown, an expired and a
// revoked one are refused in the same way, in database time, from the next
// request on. What a request with a known key may do is said by the scopes of
// the key, which the caller has to ask about.
//
// A webhook secret is replaced without a gap: the old one signs beside the new
// one until its time is over, in database time too.
//
// It does not promise that the beginning of a key (Prefix) is unique, or secret.
// Webhook secrets that are valid are stored as they are, since they sign: whoever
// may read webhook_secrets can sign in our name.
package merchants

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
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

// Webhook is where a merchant that registers wants to be told.
type Webhook struct {
	URL    string
	Secret string // Standard Webhooks, whsec_…
}

const upsertMerchant = `
insert into merchants
       (merchant_id, fee_basis_points, fee_fixed, webhook_url, webhook_generation)
values ($1, $2, $3, nullif($4, ''), case when $4 <> '' then 1 end)
on conflict (merchant_id) do update
   set webhook_url        = coalesce(excluded.webhook_url, merchants.webhook_url),
       webhook_generation = coalesce(merchants.webhook_generation, excluded.webhook_generation)`

// The first secret of an account that has none; one that is there stays.
const insertFirstSecret = `
insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_by)
values ($1, 1, $2, $3, 'registration')
on conflict (merchant_id, generation) do nothing`

// Register queues an account. An account that exists keeps its fees and its
// webhook secret (RotateSecret replaces that), and takes the endpoint's URL if one
// is given; so it may be queued again. A URL for an account without any secret is
// refused with the batch, by merchants_webhook_secret_exists.
func Register(b *pgx.Batch, m Merchant, w Webhook) error {
	if m.FeeFixed == nil {
		m.FeeFixed = map[string]int64{}
	}
	fixed, err := json.Marshal(m.FeeFixed)
	if err != nil {
		return fmt.Errorf("encode the fees of %s: %w", m.ID, err)
	}
	b.Queue(upsertMerchant, m.ID, m.FeeBasisPoints, fixed, w.URL)
	if w.Secret != "" {
		hash := sha256.Sum256([]byte(w.Secret))
		b.Queue(insertFirstSecret, m.ID, w.Secret, hash[:])
	}
	return nil
}
