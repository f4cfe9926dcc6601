package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

type keysCmd struct {
	Create createKeyCmd `cmd:"" help:"Create an API key and print it, once." example:"keys create --merchant acme --scopes charges:read"`
	List   listKeysCmd  `cmd:"" help:"List API keys by their prefixes. Expired and revoked ones are included." example:"keys list --merchant acme"`
	Revoke revokeKeyCmd `cmd:"" help:"Revoke an API key, at once or later. The next request with it is refused, or the first one after --in. It cannot be undone." example:"keys revoke sk_live_0S_qPefE --in 7d"`
}

// merchantFlag narrows a command to a merchant; "" is everyone.
type merchantFlag struct {
	Merchant string `placeholder:"ID" help:"Only what belongs to this merchant."`
}

type createKeyCmd struct {
	Merchant string            `required:"" placeholder:"ID" help:"The merchant to whom the key belongs."`
	Scopes   []merchants.Scope `required:"" enum:"charges:write,charges:read,refunds:write" help:"Scopes of the key, separated by commas: charges:write, charges:read, refunds:write."`
	Expires  *model.Duration   `placeholder:"30d" help:"Time until the key expires. Without it the key does not expire."`
	APIKey   string            `placeholder:"sk_test_…" help:"A test key. Without it a live key is generated."`
}

const (
	testKey     = "sk_test_"
	shortestKey = len("sk_test_demo")
)

// checkGiven refuses an API key that an operator may not choose, without showing it.
func checkGiven(key string) error {
	if key != "" && (!strings.HasPrefix(key, testKey) || len(key) < shortestKey) {
		return fmt.Errorf("--api-key takes a test key alone, which begins with %s and has at least %d characters: leave it out, and a live key is generated and printed once", testKey, shortestKey)
	}
	return nil
}

func (k *createKeyCmd) AfterApply() error {
	k.Scopes = slices.DeleteFunc(merchants.Scopes(), func(s merchants.Scope) bool { return !slices.Contains(k.Scopes, s) })
	return checkGiven(k.APIKey)
}

// Run prints the key alone on stdout, and what it is for on stderr.
//
// If we die here: after the commit and before the key is printed there is a key that no
// client has. It is listed and can be revoked.
func (k *createKeyCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	key, b := cmp.Or(k.APIKey, merchants.NewKey()), &pgx.Batch{}
	merchants.IssueKey(b, key, merchants.Grant{Merchant: k.Merchant, Scopes: k.Scopes, Life: (*time.Duration)(k.Expires)})
	err := db.Commit(ctx, b)
	if groupcommit.Constraint(err) == "api_keys_merchant_id_fkey" {
		return fmt.Errorf("there is no merchant %q: payonce seed registers one", k.Merchant)
	}
	if err != nil {
		return fmt.Errorf("create a key of %s: %w", k.Merchant, err)
	}
	made, err := checkStored(ctx, db, k.Merchant, key, k.Scopes)
	if err == nil {
		showSecret(c, key, []merchants.Key{made}, keyColumns)
	}
	return err
}

// checkStored returns a key as it is stored, if it is, and refuses one that is stored for something
// else: a key that was given may exist.
func checkStored(ctx context.Context, db *postgres.DB, merchant, key string, scopes []merchants.Scope) (merchants.Key, error) {
	found, err := merchants.FindKeys(ctx, db, "", &key)
	if err != nil || len(found) == 0 || !found[0].Is(key) {
		return merchants.Key{}, err
	}
	if found[0].Merchant != merchant || found[0].RevokedAt != nil || !slices.Equal(found[0].Scopes, scopes) {
		err = errors.New("--api-key is there already, of another merchant, with other scopes, or revoked: give another one")
	}
	return found[0], err
}

type listKeysCmd struct{ merchantFlag }

func (k listKeysCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, k.Merchant, nil)
	return showList(c, keys, err, keyColumns)
}

const keyColumns = "prefix merchant scopes created_at expires_at revoked_at"

type revokeKeyCmd struct {
	merchantFlag

	Prefix string         `arg:"" help:"Prefix of the key, as listed, or the whole key, which names exactly one."`
	All    bool           `help:"Revoke every key with the prefix, if there are several."`
	In     model.Duration `default:"0s" help:"How long the key is still valid, while its clients move to a new one."`
}

// Run may be repeated: a key stays revoked since its first time, and an end that is nearer stays.
// It does not print the name, which may be a whole key.
func (k revokeKeyCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, k.Merchant, &k.Prefix)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New("no key is named so: payonce keys list shows the prefixes")
	case len(keys) > 1 && !k.All:
		table(c.stderr, keys, keyColumns)
		return fmt.Errorf("%d keys may be meant: give the whole key, --merchant or --all", len(keys))
	}
	b := &pgx.Batch{}
	for _, key := range keys {
		merchants.RevokeKey(b, key, time.Duration(k.In))
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("revoke %d keys: %w", len(keys), err)
	}
	revoked, err := merchants.FindKeys(ctx, db, k.Merchant, &k.Prefix)
	return showList(c, revoked, err, keyColumns)
}
