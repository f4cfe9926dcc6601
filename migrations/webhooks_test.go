package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func webhookGuards() []guard {
	secret := func(merchant string, generation int, rest string) string {
		return fmt.Sprintf(`
insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_by, ends_at)
values ('%s', %d, %s)`, merchant, generation, rest)
	}
	const (
		good = `'whsec_', sha256('s'), 'cli:me', null`
		told = `insert into merchants (merchant_id, webhook_url, webhook_generation) values ('g_1', 'https://shop.example', 1)`
	)
	resend := func(by string) string {
		return fmt.Sprintf(`
insert into webhook_resends
       (resend_id, event_id, charge_id, merchant_id, requested_by)
values (md5('r')::uuid, md5('e')::uuid, 'ch_1', 'g_1', '%s')`, by)
	}
	return []guard{
		{"webhook_secrets_pkey", "of two who replace one secret one wins", []string{merchant("g_1"), secret("g_1", 1, good)}, secret("g_1", 1, good)},
		{"webhook_secrets_merchant_id_fkey", "a secret has a merchant", nil, secret("nobody", 1, good)},
		{"webhook_secrets_generation_check", "secrets are counted", []string{merchant("g_1")}, secret("g_1", 0, good)},
		{"webhook_secrets_secret_hash_check", "a fingerprint is one", []string{merchant("g_1")}, secret("g_1", 1, `'whsec_', 'whsec_', 'cli:me', null`)},
		{"webhook_secrets_created_by_check", "a secret comes from somebody", []string{merchant("g_1")}, secret("g_1", 1, `'whsec_', sha256('s'), '', null`)},
		{"webhook_secrets_end_before_they_are_forgotten", "what signs is not forgotten", []string{merchant("g_1")}, secret("g_1", 1, `null, sha256('s'), 'cli:me', null`)},
		{"merchants_webhook_has_a_secret", "a webhook has a secret", nil, `insert into merchants (merchant_id, webhook_url) values ('g_1', 'https://shop.example')`},
		{"merchants_webhook_has_a_secret", "a secret has a webhook", nil, `insert into merchants (merchant_id, webhook_generation) values ('g_1', 1)`},
		{"merchants_webhook_secret_exists", "a secret that is used is there", nil, told},
		{"merchants_webhook_secret_exists", "and is the merchant's own", []string{merchant("g_2"), secret("g_2", 1, good)}, told},
		{"webhook_resends_pkey", "a resend is one", []string{resend("cli:me")}, resend("cli:you")},
		{"webhook_resends_requested_by_check", "and is wanted by somebody", nil, resend("")},
	}
}

// Secrets are for the worker alone, which signs and registers nothing.
func TestWebhookRights(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	if _, err := conn.Exec(t.Context(), `
insert into merchants (merchant_id) values ('acme');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at)
values ('acme', 1, 'whsec_b2xk', sha256('s'), 'test', now()),
       ('acme', 2, 'whsec_bmV3', sha256('s'), 'test', null)`); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		role, statement string
		allowed         bool
	}{
		{"payonce_worker", `select secret from webhook_secrets`, true},
		{"payonce_worker", `select webhook_url, webhook_generation from merchants`, true},
		{"payonce_worker", `update webhook_resends set delivered_at = now() where resend_id = gen_random_uuid()`, true},
		{"payonce_worker", `update webhook_resends set requested_by = 'somebody else'`, false},
		{"payonce_worker", `delete from webhook_resends`, false},
		{"payonce_worker", `update webhook_secrets set secret = null where generation = 1`, true},
		{"payonce_worker", `update webhook_secrets set secret = 'whsec_b3duZWQ=' where generation = 1`, false},
		{"payonce_worker", `update webhook_secrets set ends_at = now()`, false},
		{"payonce_worker", `delete from webhook_secrets`, false},
		{"payonce_worker", `update merchants set webhook_url = 'https://shop.example'`, false},
		{"payonce_api", `select secret from webhook_secrets`, false},
		{"payonce_api", `select secret_hash from webhook_secrets`, false},
		{"payonce_api", `select charge_id from webhook_resends`, false},
	} {
		if _, err := conn.Exec(t.Context(), "set role "+test.role); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Exec(t.Context(), test.statement)
		var refusal *pgconn.PgError
		if test.allowed && err != nil || !test.allowed && (!errors.As(err, &refusal) || refusal.Code != "42501") {
			t.Errorf("%s: %s: %v, want it allowed: %t", test.role, test.statement, err, test.allowed)
		}
	}
	// What still signs is not the worker's to forget, so it finds no such row.
	if _, err := conn.Exec(t.Context(), `set role payonce_worker`); err != nil {
		t.Fatal(err)
	}
	if tag, err := conn.Exec(t.Context(), `update webhook_secrets set secret = null`); err != nil || tag.RowsAffected() != 1 {
		t.Errorf("the worker forgot %d secrets, want the one that is over: %v", tag.RowsAffected(), err)
	}
}
