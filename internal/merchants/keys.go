package merchants

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// A key that exists stays as it is, with its merchant: a revoked one is not revived. A caller
// that adds a chosen key asks Authenticate afterwards. The clock is read once, so a life that
// PostgreSQL rounds to nothing is none, however long the statement takes.
const insertKey = `
insert into api_keys
       (key_hash, prefix, merchant_id, scopes, created_at, expires_at)
select $1, $2, $3, $4, birth, birth + $5::interval
  from clock_timestamp() as birth
on conflict (key_hash) do nothing`

// IssueKey queues an API key of a merchant that ends after life, or never if life is zero. The
// batch is refused for a life below a microsecond, by api_keys_expire_after_their_birth; for
// no scope or an unknown one, by api_keys_known_scopes; and for an unknown merchant, by
// api_keys_merchant_id_fkey.
func IssueKey(b *pgx.Batch, merchant, key string, scopes []Scope, life time.Duration) {
	var ends *time.Duration
	if life != 0 {
		ends = &life
	}
	b.Queue(insertKey, hashOf(key), Prefix(key), merchant, scopes, ends)
}

// AddKey queues an API key of a merchant, with every scope and without end.
func AddKey(b *pgx.Batch, merchant, key string) { IssueKey(b, merchant, key, Scopes(), 0) }

// Key is an API key as its operators see it. The key itself is stored nowhere.
type Key struct {
	Prefix    string     `json:"prefix"`
	Merchant  string     `json:"merchant"`
	Scopes    []Scope    `json:"scopes"`
	CreatedAt time.Time  `json:"created_at"` // UTC in database time, as the others
	ExpiresAt *time.Time `json:"expires_at"` // nil: never
	RevokedAt *time.Time `json:"revoked_at"` // nil: not

	hash []byte // identifies the key
}

// A name that is not longer than the beginning of all keys names none of them.
const selectKeys = `
select prefix,
       merchant_id,
       scopes,
       created_at at time zone 'UTC' as created_at,
       expires_at at time zone 'UTC' as expires_at,
       revoked_at at time zone 'UTC' as revoked_at,
       key_hash
  from api_keys
 where $1 in ('', merchant_id)
   and ($2::text is null
        or starts_with($2, prefix)
        or starts_with(prefix, $2) and length($2) > length('sk_live_'))
 order by created_at, key_hash`

// ListKeys returns the keys of a merchant, or of all if it is "", the oldest first.
func ListKeys(ctx context.Context, q postgres.Querier, merchant string) ([]Key, error) {
	return readKeys(ctx, q, merchant, nil)
}

// FindKeys returns the keys of a merchant, or of all if it is "", that a name may mean, the
// oldest first. A whole key means itself alone. Other names are a prefix as ListKeys has it,
// a longer part of a key, or a shorter part of its prefix that is more than sk_live_.
func FindKeys(ctx context.Context, q postgres.Querier, merchant, name string) ([]Key, error) {
	storableName := storable(name)
	keys, err := readKeys(ctx, q, merchant, &storableName)
	if err != nil {
		return nil, err
	}
	for _, means := range []func(Key) bool{
		func(k Key) bool { return subtle.ConstantTimeCompare(k.hash, hashOf(name)) == 1 },
		func(k Key) bool { return k.Prefix == name },
	} {
		if meant := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !means(k) }); len(meant) > 0 {
			return meant, nil
		}
	}
	return keys, nil
}

func readKeys(ctx context.Context, q postgres.Querier, merchant string, name *string) ([]Key, error) {
	rows, _ := q.Query(ctx, selectKeys, merchant, name) // rows have its error too
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Key, err error) {
		return k, row.Scan(&k.Prefix, &k.Merchant, &k.Scopes, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.hash)
	})
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	return keys, nil
}

const revokeKey = `
update api_keys
   set revoked_at = clock_timestamp()
 where key_hash = $1
   and revoked_at is null`

// RevokeKey queues the end of a key that ListKeys or FindKeys returned. Once it is committed
// every new request with the key is refused. A second revocation changes nothing.
func RevokeKey(b *pgx.Batch, k Key) { b.Queue(revokeKey, k.hash) }

const (
	nameLength   = 8 // tells a key from all others
	prefixLength = len("sk_live_") + nameLength
)

// NewKey makes a key: a random name of 8 characters, which is not secret, and 256 random bits.
func NewKey() string {
	var name [nameLength * 6 / 8]byte
	var secret [32]byte
	_, _ = rand.Read(name[:]) // never fails: crypto/rand ends the program instead
	_, _ = rand.Read(secret[:])
	return "sk_live_" + base64.RawURLEncoding.EncodeToString(name[:]) + base64.RawURLEncoding.EncodeToString(secret[:])
}

// Prefix is the part of a key by which operators name it and requests find it. It is not
// secret, and never more than half of a key.
func Prefix(key string) string { return storable(key[:min(len(key)/2, prefixLength)]) }

// storable is the part of a text that PostgreSQL can store.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}
