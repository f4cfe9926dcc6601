package merchants

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrUnauthorized is returned by Authenticate for every key that opens nothing:
// malformed, unknown, expired or revoked.
var ErrUnauthorized = errors.New("the API key is not valid")

// The index is asked for the part of keys that is no secret. What decides,
// expiry and revocation too, is in this one function of migration 00020 and in
// database time. The api sees nothing else of the keys.
const selectByPrefix = `
select key_hash,
       scopes,
       merchant_id,
       fee_basis_points,
       fee_fixed,
       has_webhook
  from api_keys_by_prefix($1)`

// candidate is a key that begins like one of a request.
type candidate struct {
	keyHash  []byte
	merchant Merchant
}

// Authenticate finds the merchant of an API key, with the scopes of the key.
// ErrUnauthorized if it opens nothing. How long that takes depends on the prefix
// of the key alone: all candidates are compared, each in constant time.
func Authenticate(ctx context.Context, q postgres.Querier, key string) (Merchant, error) {
	found, err := authenticate(ctx, q, []string{key})
	if err != nil {
		return Merchant{}, err
	}
	return opened(found[0])
}

// Doorkeeper is Authenticate for many at once: keys that are asked about at the same
// moment share a round trip (postgres.Gatherer). It remembers nothing: a key that is
// revoked or has expired is refused from the next request on.
type Doorkeeper struct {
	together *postgres.Gatherer[string, *Merchant]
}

// NewDoorkeeper makes one. So many round trips are under way at a time, at most.
func NewDoorkeeper(q postgres.Querier, most int) *Doorkeeper {
	return &Doorkeeper{together: postgres.NewGatherer(most, func(ctx context.Context, keys []string) ([]*Merchant, error) {
		return authenticate(ctx, q, keys)
	})}
}

// Authenticate is the function of that name, in the company of others.
func (d *Doorkeeper) Authenticate(ctx context.Context, key string) (Merchant, error) {
	m, err := d.together.Ask(ctx, key)
	if err != nil {
		return Merchant{}, err
	}
	return opened(m)
}

func opened(m *Merchant) (Merchant, error) {
	if m == nil {
		return Merchant{}, ErrUnauthorized
	}
	return *m, nil
}

// authenticate is Authenticate for many keys: for each its merchant, nil if it opens
// nothing.
func authenticate(ctx context.Context, q postgres.Querier, keys []string) ([]*Merchant, error) {
	rows, err := q.Query(ctx, selectByPrefix, allPrefixes(keys))
	if err != nil {
		return nil, fmt.Errorf("authenticate: %w", err)
	}
	candidates, err := pgx.CollectRows(rows, readCandidate)
	if err != nil {
		return nil, fmt.Errorf("authenticate: %w", err)
	}
	opened := make([]*Merchant, len(keys))
	for i, key := range keys {
		hash := sha256.Sum256([]byte(key))
		found := -1
		for at, c := range candidates {
			found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(c.keyHash, hash[:]), at, found)
		}
		if found >= 0 {
			opened[i] = &candidates[found].merchant
		}
	}
	return opened, nil
}

func readCandidate(row pgx.CollectableRow) (c candidate, err error) {
	var fixed []byte
	m := &c.merchant
	if err := row.Scan(&c.keyHash, &m.Scopes, &m.ID, &m.FeeBasisPoints, &fixed, &m.HasWebhook); err != nil {
		return c, err
	}
	return c, json.Unmarshal(fixed, &m.FeeFixed)
}

// allPrefixes are those that some keys may be kept under, each once.
func allPrefixes(keys []string) []string {
	var all []string
	for _, key := range keys {
		all = append(all, prefixes(key)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
