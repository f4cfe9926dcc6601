// Package merchants keeps the accounts of merchants, their API keys and their webhook
// secrets.
//
// # Guarantees
//
//   - A raw API key is stored nowhere: a request is authenticated by SHA-256.
//   - A malformed, an unknown, an expired and a revoked key are refused in the same way, in
//     database time, from the next request on.
//   - A webhook secret is replaced without a gap: the old one signs beside the new one until
//     its end, in database time.
//
// # Limits
//
//   - The scopes of a key are returned, not enforced: the caller asks Merchant.May.
//   - The beginning of a key (Prefix) is neither unique nor secret.
//   - Webhook secrets are stored as they are, since they sign: a reader of webhook_secrets can
//     sign in our name. One that has ended stays until the next rotation.
//
// Tables: merchants, api_keys, webhook_secrets.
//
// No library knows these tables, and the api, the worker and the command line share them.
package merchants

import (
	_ "embed"
	"slices"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates the tables in an empty database. It is plain SQL, to be
// run once in a transaction.
func Schema() string { return schema }

// Merchant is an account as a request sees it.
type Merchant struct {
	ID             string
	FeeBasisPoints int64
	FeeFixed       map[string]int64 // currency → minor units
	HasWebhook     bool

	// OneChargePerOrder: an order has at most one charge that is pending or has succeeded. Register ignores it.
	OneChargePerOrder bool

	Scopes []Scope // of the request's API key; Register ignores them
}

// May reports whether the key of the request has a scope.
func (m Merchant) May(s Scope) bool { return slices.Contains(m.Scopes, s) }

// Scope is what an API key may be used for. None includes another.
type Scope string

// The scopes, which are stored under these names.
const (
	ChargesWrite Scope = "charges:write" // request charges and cancel them
	ChargesRead  Scope = "charges:read"  // read charges, refunds, idempotency keys and balances
	RefundsWrite Scope = "refunds:write" // request refunds
)

// Scopes are all scopes.
func Scopes() []Scope { return []Scope{ChargesWrite, ChargesRead, RefundsWrite} }

// Webhook is the endpoint of a merchant that registers.
type Webhook struct {
	URL    string
	Secret string // Standard Webhooks, whsec_…
}

const upsertMerchant = `
-- merchants.upsertMerchant
insert into merchants
       (merchant_id, fee_basis_points, fee_fixed, one_charge_per_order, webhook_url)
values ($1, $2, $3, coalesce($5, false), nullif($4, ''))
on conflict (merchant_id) do update
   set one_charge_per_order = coalesce($5, merchants.one_charge_per_order),
       webhook_url          = coalesce(excluded.webhook_url, merchants.webhook_url)`

// insertFirstSecret stores the first secret of an account that has none; an existing one
// stays.
const insertFirstSecret = `
-- merchants.insertFirstSecret
insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_by)
values ($1, 1, $2, $3, 'registration')
on conflict (merchant_id, generation) do nothing`

// Register queues an account; it may be queued again. An account that exists keeps its fees
// and its webhook secret (RotateSecret replaces that), and takes the endpoint's URL if one is
// given. A URL for an account without any secret is refused with the batch, by
// merchants_webhook_secret_exists. oneChargePerOrder holds for what is accepted from then on; nil leaves it.
func Register(b *pgx.Batch, m Merchant, w Webhook, oneChargePerOrder *bool) {
	if m.FeeFixed == nil {
		m.FeeFixed = map[string]int64{}
	}
	b.Queue(upsertMerchant, m.ID, m.FeeBasisPoints, m.FeeFixed, w.URL, oneChargePerOrder)
	if w.Secret != "" {
		b.Queue(insertFirstSecret, m.ID, w.Secret, hashOf(w.Secret))
	}
}
