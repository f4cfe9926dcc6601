// Package merchants keeps the accounts of those who charge, and their API keys.
// It owns merchants and api_keys.
//
// It promises that a raw key is stored nowhere: a request is authenticated by
// the SHA-256 of what it carries, and an unknown key and a malformed one are
// refused in the same way.
package merchants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrUnauthorized is returned by Authenticate for every key that opens nothing.
var ErrUnauthorized = errors.New("the API key is not valid")

// Merchant is an account as a request sees it.
type Merchant struct {
	ID             string
	FeeBasisPoints int64
	FeeFixed       map[string]int64 // currency → minor units
	HasWebhook     bool
}

const selectByKey = `
select m.merchant_id,
       m.fee_basis_points,
       m.fee_fixed,
       m.webhook_url is not null
  from api_keys k
  join merchants m
    on m.merchant_id = k.merchant_id
 where k.key_hash = $1`

// Authenticate finds the merchant of an API key. The index compares hashes, so
// its timing tells nothing about a key. ErrUnauthorized if there is none.
func Authenticate(ctx context.Context, q postgres.Querier, key string) (Merchant, error) {
	hash := sha256.Sum256([]byte(key))
	var m Merchant
	var fixed []byte
	err := q.QueryRow(ctx, selectByKey, hash[:]).Scan(&m.ID, &m.FeeBasisPoints, &fixed, &m.HasWebhook)
	if errors.Is(err, pgx.ErrNoRows) {
		return Merchant{}, ErrUnauthorized
	}
	if err == nil {
		err = json.Unmarshal(fixed, &m.FeeFixed)
	}
	if err != nil {
		return Merchant{}, fmt.Errorf("authenticate: %w", err)
	}
	return m, nil
}

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

// A key that exists stays with the merchant that has it; the check of Seed
// tells when that is somebody else.
const insertKey = `
insert into api_keys
       (key_hash, prefix, merchant_id)
values ($1, $2, $3)
on conflict (key_hash) do nothing`

// AddKey queues an API key of a merchant.
func AddKey(b *pgx.Batch, merchant, key string) {
	hash := sha256.Sum256([]byte(key))
	b.Queue(insertKey, hash[:], Prefix(key), merchant)
}

// NewKey makes a key of 256 random bits.
func NewKey() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the program instead
	return "sk_live_" + base64.RawURLEncoding.EncodeToString(random[:])
}

// prefixLength shows enough of a key to tell keys apart, and never a whole one.
const prefixLength = 12

// Prefix is the part of a key by which people name it.
func Prefix(key string) string {
	return strings.ToValidUTF8(key[:min(len(key)/2, prefixLength)], "")
}
