package merchants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// insertKey adds a key. A key that exists stays as it is, with its merchant: a revoked one is
// not revived. The clock is read once, so a life that PostgreSQL rounds to nothing is none.
const insertKey = `
-- merchants.insertKey
insert into api_keys
       (key_hash, prefix, merchant_id, scopes, created_at, expires_at)
select $1, $2, $3, $4, birth, birth + $5::interval
  from clock_timestamp() as birth
on conflict (key_hash) do nothing`

// Grant is what an API key may be used for.
type Grant struct {
	Merchant string
	Scopes   []Scope
	Life     *time.Duration // after which it expires; nil: never
}

// IssueKey queues an API key. The batch is refused for a life below a microsecond, by
// api_keys_expire_after_their_birth; for no scope or an unknown one, by api_keys_known_scopes;
// and for an unknown merchant, by api_keys_merchant_id_fkey.
func IssueKey(b *pgx.Batch, key string, g Grant) {
	b.Queue(insertKey, hashOf(key), Prefix(key), g.Merchant, g.Scopes, g.Life)
}

// Key is an API key as its operators see it. The key itself is stored nowhere.
type Key struct {
	Prefix    string     `json:"prefix"`
	Merchant  string     `json:"merchant"`
	Scopes    []Scope    `json:"scopes"`
	CreatedAt time.Time  `json:"created_at"` // UTC in database time, as the others
	ExpiresAt *time.Time `json:"expires_at"` // nil: never
	RevokedAt *time.Time `json:"revoked_at"` // nil: not
	Hash      []byte     `json:"-"`          // identifies the key
}

// Is reports whether this is the whole key, in constant time.
func (k Key) Is(key string) bool { return subtle.ConstantTimeCompare(k.Hash, hashOf(key)) == 1 }

const selectKeys = `
-- merchants.selectKeys
select prefix,
       merchant_id                   as merchant,
       scopes,
       created_at at time zone 'UTC' as created_at,
       expires_at at time zone 'UTC' as expires_at,
       revoked_at at time zone 'UTC' as revoked_at,
       key_hash                      as hash
  from api_keys
 where $1 in ('', merchant_id)
   and ($2::text is null or prefix = $2 or key_hash = $3)
 order by created_at, key_hash`

// FindKeys returns the keys of a merchant, or of all if it is "", the oldest first: every one or, with a name, those
// that it means. A whole key means itself alone, and a prefix every key that has it.
func FindKeys(ctx context.Context, q postgres.Querier, merchant string, name *string) ([]Key, error) {
	var prefix *string
	var hash []byte
	if name != nil {
		prefix, hash = new(storable(*name)), hashOf(*name)
	}
	rows, _ := q.Query(ctx, selectKeys, merchant, prefix, hash) // rows have its error too
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByName[Key])
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	if i := slices.IndexFunc(keys, func(k Key) bool { return name != nil && k.Is(*name) }); i >= 0 {
		return keys[i : i+1], nil
	}
	return keys, nil
}

const revokeKey = `
-- merchants.revokeKey
update api_keys
   set revoked_at = clock_timestamp()
 where key_hash = $1
   and revoked_at is null`

const expireKey = `
-- merchants.expireKey
update api_keys
   set expires_at = least(expires_at, clock_timestamp() + $2::interval)
 where key_hash = $1
   and revoked_at is null`

// RevokeKey queues the end of a key that FindKeys returned: at once, or after a time
// above zero. Once it is committed, or has passed, every new request with the key is refused. A
// second revocation changes nothing, and an end that is nearer stays.
func RevokeKey(b *pgx.Batch, k Key, after time.Duration) {
	if after > 0 {
		b.Queue(expireKey, k.Hash, after)
		return
	}
	b.Queue(revokeKey, k.Hash)
}

const prefixLength = len("sk_live_") + 8 // characters that tell a key from all others

// NewKey makes a key of 260 random bits, of which the 40 in its Prefix are not secret.
func NewKey() string { return "sk_live_" + rand.Text() + rand.Text() }

// Prefix is the part of a key by which operators name it. It is not secret, and never more than half of a key.
func Prefix(key string) string { return storable(key[:min(len(key)/2, prefixLength)]) }

// storable is the part of a text that PostgreSQL can store.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

// ErrUnauthorized is returned by NewAuthenticate's reader for every key that is not valid: malformed,
// unknown, expired or revoked.
var ErrUnauthorized = errors.New("the API key is not valid")

// selectByKeys reads the merchants of keys, with the place of each key among the given ones. The function of
// schema.sql decides on expiry and revocation, in database time; the api sees nothing else of the keys.
const selectByKeys = `
-- merchants.selectByKeys
select place, merchant_id, fee_basis_points, fee_fixed, one_charge_per_order, has_webhook, scopes
  from api_keys_by_hash($1)`

// NewAuthenticate returns what reads the merchant of an API key, with the scopes of the key;
// ErrUnauthorized if it is not valid. The time that it takes depends on the SHA-256 of the key alone.
// Calls at the same moment share a round trip (postgres.Reads), of which so many are in flight at
// most. Nothing is cached.
func NewAuthenticate(q postgres.Querier, most int) func(ctx context.Context, key string) (Merchant, error) {
	reads := postgres.NewReads(most, func(ctx context.Context, keys []string) ([]Merchant, error) {
		return merchantsOf(ctx, q, keys)
	})
	return func(ctx context.Context, key string) (Merchant, error) {
		m, err := reads.Lookup(ctx, key)
		if err == nil && m.ID == "" {
			err = ErrUnauthorized
		}
		return m, err
	}
}

// merchantsOf are the merchants of keys, in their order; without an ID where a key is not valid. A key that
// several requests have is asked for once.
func merchantsOf(ctx context.Context, q postgres.Querier, keys []string) ([]Merchant, error) {
	places, hashes := map[string]int64{}, [][]byte{}
	for _, key := range keys {
		if places[key] == 0 {
			hashes = append(hashes, hashOf(key))
			places[key] = int64(len(hashes))
		}
	}
	rows, _ := q.Query(ctx, selectByKeys, hashes) // rows have its error too
	found := map[int64]Merchant{}
	var place int64
	var m Merchant
	_, err := pgx.ForEachRow(rows, []any{&place, &m.ID, &m.FeeBasisPoints, &m.FeeFixed, &m.OneChargePerOrder, &m.HasWebhook, &m.Scopes}, func() error {
		found[place], m = m, Merchant{} // the next row has maps and slices of its own
		return nil
	})
	if err != nil {
		err = fmt.Errorf("authenticate: %w", err)
	}
	all := make([]Merchant, len(keys))
	for i, key := range keys {
		all[i] = found[places[key]]
	}
	return all, err
}

func hashOf(secret string) []byte {
	hash := sha256.Sum256([]byte(secret))
	return hash[:]
}
