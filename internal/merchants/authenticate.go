package merchants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrUnauthorized is returned by Authenticate for every key that is not valid: malformed,
// unknown, expired or revoked.
var ErrUnauthorized = errors.New("the API key is not valid")

// The index is asked for the part of a key that is not secret. The function of schema.sql
// decides on expiry and revocation, in database time; the api sees nothing else of the keys.
// The digests that are compared are salted for this one time, so the time of the comparison
// tells nothing of a hash.
//
// There is one row also for a key that is not valid, so that no merchant's name is left from
// an earlier read.
const selectByKey = `
select set_config('payonce.merchant', coalesce(k.merchant_id, ''), true) as merchant_id,
       coalesce(k.fee_basis_points, 0)                                   as fee_basis_points,
       coalesce(k.fee_fixed, '{}')                                       as fee_fixed,
       coalesce(k.has_webhook, false)                                    as has_webhook,
       coalesce(k.scopes, '{}')                                          as scopes
  from (select) as request
  left join api_keys_by_prefix($1) as k
    on sha256(k.key_hash || $3) = sha256($2 || $3)`

// Authenticate returns the merchant of an API key, with the scopes of the key;
// ErrUnauthorized if it is not valid. The time that it takes depends on the prefix of the key
// alone.
func Authenticate(ctx context.Context, q postgres.Querier, key string) (m Merchant, err error) {
	rows, _ := q.Query(ctx, selectByKey, selectors(key)...) // rows have its error too
	m, err = pgx.CollectExactlyOneRow(rows, readMerchant)
	switch {
	case err != nil:
		return Merchant{}, fmt.Errorf("authenticate: %w", err)
	case m.ID == "":
		return Merchant{}, ErrUnauthorized
	}
	return m, nil
}

// QueueMerchant queues the read of the merchant whose API key it is (see DB.Read). The
// statements that follow in the batch run as this merchant, or as no merchant if the key is
// not valid: m has no ID then.
func QueueMerchant(b *pgx.Batch, key string, m *Merchant) {
	b.Queue(selectByKey, selectors(key)...).Query(func(rows pgx.Rows) (err error) {
		*m, err = pgx.CollectExactlyOneRow(rows, readMerchant)
		return err
	})
}

func selectors(key string) []any {
	return []any{[]string{Prefix(key)}, hashOf(key), []byte(rand.Text())}
}

func hashOf(secret string) []byte {
	hash := sha256.Sum256([]byte(secret))
	return hash[:]
}

func readMerchant(row pgx.CollectableRow) (m Merchant, err error) {
	var fixed []byte
	if err := row.Scan(&m.ID, &m.FeeBasisPoints, &fixed, &m.HasWebhook, &m.Scopes); err != nil {
		return m, err
	}
	return m, json.Unmarshal(fixed, &m.FeeFixed)
}
