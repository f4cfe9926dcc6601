package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	Rotate rotateKeyCmd `cmd:"" help:"Replace an API key by a new one for the same purpose, and print that once. Both are valid until the overlap is over."`
	Revoke revokeKeyCmd `cmd:"" help:"Revoke an API key: the next request with it is refused. It cannot be undone."`
}

type createKeyCmd struct {
	Merchant  string          `required:"" placeholder:"ID" help:"The merchant to whom the key belongs."`
	Scopes    []string        `required:"" help:"Scopes of the key, separated by commas: charges:write, charges:read, refunds:write, operator. A key of scope operator opens the console, for all merchants."`
	Addresses []netip.Prefix  `placeholder:"203.0.113.0/24" help:"Networks from which the key is accepted, separated by commas. Without it from any."`
	Expires   *model.Duration `placeholder:"30d" help:"Time until the key expires. Without it the key does not expire."`
	APIKey    string          `placeholder:"sk_test_…" help:"A test key. Without it a live key is generated."`
	JSON      bool            `name:"json" help:"Print the key and its scopes as JSON."`
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
	merchants.IssueKey(b, key, merchants.Grant{Merchant: k.Merchant, Scopes: scopes, Addresses: k.Addresses, Life: (*time.Duration)(k.Expires)})
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

type rotateKeyCmd struct {
	Prefix   string          `arg:"" help:"Prefix of the key, as listed, or more of the key."`
	Merchant string          `placeholder:"ID" help:"Search only the keys of this merchant."`
	Overlap  model.Duration  `default:"24h" help:"How long the old key is still valid. 0s ends it at once."`
	Expires  *model.Duration `placeholder:"30d" help:"Time until the new key expires. Without it as long as the old key's."`
	JSON     bool            `name:"json" help:"Print the new key and its scopes as JSON."`
}

func (k rotateKeyCmd) check() error {
	if k.Overlap < 0 || time.Duration(k.Overlap) > longestOverlap {
		return fmt.Errorf("--overlap is %s: give 0s to %s", time.Duration(k.Overlap), longestOverlap)
	}
	return checkLife(k.Expires)
}

// run prints the new key alone on stdout.
//
// If we die here: after the commit and before the key is printed there is a key that no client
// has, and the old one expires after the overlap. The operator rotates again, and the key that
// no client has can be revoked.
// Test: TestKeysRotate/a_key_that_was_lost_is_replaced.
func (k rotateKeyCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := meant(ctx, c, db, k.Merchant, k.Prefix, false)
	if err != nil {
		return err
	}
	key, b := merchants.NewKey(), &pgx.Batch{}
	merchants.RotateKey(b, keys[0], key, time.Duration(k.Overlap), (*time.Duration)(k.Expires))
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("rotate %s: %w", keys[0].Prefix, err)
	}
	made, err := merchants.FindKeys(ctx, db, keys[0].Merchant, key)
	switch {
	case err != nil:
		return err
	case len(made) != 1 || !made[0].Is(key):
		return fmt.Errorf("%s was revoked or has expired: payonce keys create makes another key", keys[0].Prefix)
	}
	printMade(c, key, made[0], k.JSON)
	return nil
}

// meant are the keys that a name means, one unless all may be meant. It does not print the
// name, which may be a whole key.
func meant(ctx context.Context, c *console, db *postgres.DB, merchant, name string, all bool) ([]merchants.Key, error) {
	keys, err := merchants.FindKeys(ctx, db, merchant, name)
	switch {
	case err != nil:
		return nil, err
	case len(keys) == 0:
		return nil, errors.New("no key is named so: payonce keys list shows the prefixes")
	case len(keys) > 1 && !all:
		printKeys(&c.stderr, keys, false)
		return nil, fmt.Errorf("%d keys may be meant: give more of the key, or --merchant; keys revoke also takes --all", len(keys))
	}
	return keys, nil
}

type revokeKeyCmd struct {
	Prefix   string `arg:"" help:"Prefix of the key, as listed, or more of the key. A whole key names exactly one."`
	Merchant string `placeholder:"ID" help:"Search only the keys of this merchant."`
	All      bool   `help:"Revoke every key with the prefix, if there are several."`
	JSON     bool   `name:"json" help:"Print what was revoked as JSON."`
}

// run may be repeated: a key stays revoked since its first time.
func (k revokeKeyCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := meant(ctx, c, db, k.Merchant, k.Prefix, k.All)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	for _, key := range keys {
		merchants.RevokeKey(b, key)
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
	printList(p, asJSON, keys, "PREFIX\tMERCHANT\tSCOPES\tFROM\tCREATED\tUSED\tEXPIRES\tREVOKED", func(k merchants.Key) []any {
		from := "anywhere"
		if k.Addresses != nil {
			from = commas(k.Addresses)
		}
		return []any{
			k.Prefix, k.Merchant, scopesOf(k), from, k.CreatedAt,
			timeOr(k.LastUsedAt, "never"), timeOr(k.ExpiresAt, "never"), timeOr(k.RevokedAt, "never"),
		}
	})
}

func scopesOf(k merchants.Key) string { return commas(k.Scopes) }

func commas[T any](list []T) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
}
