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
	Create createKeyCmd `cmd:"" help:"Create an API key and print it, once."`
	List   listKeysCmd  `cmd:"" help:"List API keys by their prefixes, expired and revoked ones included."`
	Revoke revokeKeyCmd `cmd:"" help:"Revoke an API key: the next request with it is refused, or the first one after --in. It cannot be undone."`
}

type createKeyCmd struct {
	Merchant string          `required:"" placeholder:"ID" help:"The merchant to whom the key belongs."`
	Scopes   []string        `required:"" help:"Scopes of the key, separated by commas: charges:write, charges:read, refunds:write."`
	Expires  *model.Duration `placeholder:"30d" help:"Time until the key expires. Without it the key does not expire."`
	APIKey   string          `placeholder:"sk_test_…" help:"A test key. Without it a live key is generated."`
	JSON     bool            `name:"json" help:"Print the key and its scopes as JSON."`
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

const shortestLife = time.Second

func (k createKeyCmd) check() error {
	if err := checkLife(k.Expires); err != nil {
		return err
	}
	if _, err := merchants.ParseScopes(k.Scopes); err != nil {
		return fmt.Errorf("--scopes: %w", err)
	}
	return checkGiven(k.APIKey)
}

const selectMerchantExists = `
select exists (select from merchants where merchant_id = $1)`

// requireMerchant refuses a merchant that there is not, of whom a search has found nothing; "" is
// everyone.
func requireMerchant(ctx context.Context, db *postgres.DB, id string) error {
	var exists bool
	if id == "" {
		return nil
	}
	if err := db.QueryRow(ctx, selectMerchantExists, id).Scan(&exists); err != nil {
		return fmt.Errorf("look for merchant %q: %w", id, err)
	}
	if !exists {
		return unknownMerchant(id)
	}
	return nil
}

func unknownMerchant(id string) error {
	return fmt.Errorf("there is no merchant %q: payonce seed registers one", id)
}

func checkLife(expires *model.Duration) error {
	if expires != nil && time.Duration(*expires) < shortestLife {
		return fmt.Errorf("--expires is %s: give a life of at least %s, or leave it out", time.Duration(*expires), shortestLife)
	}
	return nil
}

// createdKey is the one thing that shows a whole key.
type createdKey struct {
	Whole string `json:"key"`
	merchants.Key
}

// run prints the key alone on stdout, and what it is for on stderr.
//
// If we die here: after the commit and before the key is printed there is a key that no
// client has. It is listed and can be revoked.
func (k createKeyCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	scopes, err := merchants.ParseScopes(k.Scopes)
	if err != nil {
		return err
	}
	key := cmp.Or(k.APIKey, merchants.NewKey())
	b := &pgx.Batch{}
	merchants.IssueKey(b, key, merchants.Grant{Merchant: k.Merchant, Scopes: scopes, Life: (*time.Duration)(k.Expires)})
	err = db.Commit(ctx, b)
	if groupcommit.Constraint(err) == "api_keys_merchant_id_fkey" {
		return unknownMerchant(k.Merchant)
	}
	if err != nil {
		return fmt.Errorf("create a key of %s: %w", k.Merchant, err)
	}
	made, err := merchants.FindKeys(ctx, db, k.Merchant, key)
	switch {
	case err != nil:
		return err
	case len(made) != 1 || !made[0].Is(key) || made[0].RevokedAt != nil || !slices.Equal(made[0].Scopes, scopes):
		return errors.New("--api-key is there already, of another merchant, with other scopes, or revoked: give another one")
	}
	printMade(c, key, made[0], k.JSON)
	return nil
}

// printMade prints a new key alone on stdout, and what it is for on stderr.
func printMade(c *console, key string, made merchants.Key, asJSON bool) {
	if asJSON {
		c.stdout.json(createdKey{Whole: key, Key: made})
		return
	}
	c.stderr.printf("%s, a key of %s for %s, expires %s; it is shown this once and kept nowhere\n",
		made.Prefix, made.Merchant, scopesOf(made), timeOr(made.ExpiresAt, "never"))
	c.stdout.printf("%s\n", key)
}

type listKeysCmd struct {
	Merchant string `placeholder:"ID" help:"List only the keys of this merchant."`
	JSON     bool   `name:"json" help:"Print the keys as JSON."`
}

func (k listKeysCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.ListKeys(ctx, db, k.Merchant)
	if len(keys) == 0 && err == nil {
		err = requireMerchant(ctx, db, k.Merchant)
	}
	if err == nil {
		printKeys(&c.stdout, keys, k.JSON)
	}
	return err
}

type revokeKeyCmd struct {
	Prefix   string         `arg:"" help:"Prefix of the key, as listed, or the whole key, which names exactly one."`
	Merchant string         `placeholder:"ID" help:"Search only the keys of this merchant."`
	All      bool           `help:"Revoke every key with the prefix, if there are several."`
	In       model.Duration `default:"0s" help:"How long the key is still valid, while its clients move to a new one."`
	JSON     bool           `name:"json" help:"Print what was revoked as JSON."`
}

func (k revokeKeyCmd) check() error {
	if time.Duration(k.In) > longestOverlap {
		return fmt.Errorf("--in is %s: give 0s to %s", time.Duration(k.In), longestOverlap)
	}
	return nil
}

// run may be repeated: a key stays revoked since its first time, and an end that is nearer stays.
// It does not print the name, which may be a whole key.
func (k revokeKeyCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, k.Merchant, k.Prefix)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New("no key is named so: payonce keys list shows the prefixes")
	case len(keys) > 1 && !k.All:
		printKeys(&c.stderr, keys, false)
		return fmt.Errorf("%d keys may be meant: give the whole key, --merchant or --all", len(keys))
	}
	b := &pgx.Batch{}
	for _, key := range keys {
		merchants.RevokeKey(b, key, time.Duration(k.In))
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("revoke %d keys: %w", len(keys), err)
	}
	revoked, err := merchants.FindKeys(ctx, db, k.Merchant, k.Prefix)
	if err == nil {
		printKeys(&c.stdout, revoked, k.JSON)
	}
	return err
}

func printKeys(p *printer, keys []merchants.Key, asJSON bool) {
	printList(p, asJSON, keys, "PREFIX\tMERCHANT\tSCOPES\tCREATED\tEXPIRES\tREVOKED", func(k merchants.Key) []any {
		return []any{k.Prefix, k.Merchant, scopesOf(k), k.CreatedAt, timeOr(k.ExpiresAt, "never"), timeOr(k.RevokedAt, "never")}
	})
}

func scopesOf(k merchants.Key) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(k.Scopes), "[]"), " ", ",")
}
