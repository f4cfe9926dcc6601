package migrations_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
)

// A key from before keys had scopes goes on doing what it did.
func TestAnOldAPIKeyGetsEveryScope(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Empty(t))
	for _, name := range files(t) {
		if strings.HasPrefix(name, "00011_") {
			_, err := conn.Exec(t.Context(), merchant("acme")+`;
insert into api_keys (key_hash, prefix, merchant_id) values (sha256('sk_live_old'), 'sk_li', 'acme')`)
			if err != nil {
				t.Fatal(err)
			}
		}
		text, err := fs.ReadFile(migrations.FS(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), string(text)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.HasPrefix(name, "00011_") {
			break
		}
	}
	var scopes []string
	var ends bool
	err := conn.QueryRow(t.Context(), `
select scopes,
       expires_at is not null or revoked_at is not null
  from api_keys`).Scan(&scopes, &ends)
	if diff := cmp.Diff([]string{"charges:write", "charges:read", "refunds:write", "admin"}, scopes); diff != "" || ends || err != nil {
		t.Errorf("%v, ends: %t (-want +got):\n%s", err, ends, diff)
	}
}
