package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

type keysCmd struct {
	Create createKeyCmd `cmd:"" help:"Create an API key and print it, once."`
	List   listKeysCmd  `cmd:"" help:"List API keys by their prefixes, expired and revoked ones included."`
	Revoke revokeKeyCmd `cmd:"" help:"Revoke an API key: the next request with it is refused. It cannot be undone."`
}

type createKeyCmd struct {
	Merchant string         `required:"" placeholder:"ID" help:"The merchant to whom the key belongs."`
	Scopes   []string       `required:"" help:"Scopes of the key, separated by commas: charges:write, charges:read, refunds:write, admin."`
	Expires  *time.Duration `placeholder:"720h" help:"Time until the key expires. Without it the key does not expire."`
	JSON     bool           `name:"json" help:"Print the key and its scopes as JSON."`
}

const shortestLife = time.Second

func (k createKeyCmd) check() error {
	if k.Expires != nil && *k.Expires < shortestLife {
		return fmt.Errorf("--expires is %s: give a life of at least %s, or leave it out for a key that never expires", *k.Expires, shortestLife)
	}
	if _, err := merchants.ParseScopes(k.Scopes); err != nil {
		return fmt.Errorf("--scopes: %w", err)
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
	key := merchants.NewKey()
	var life time.Duration
	if k.Expires != nil {
		life = *k.Expires
	}
	b := &pgx.Batch{}
	merchants.IssueKey(b, k.Merchant, key, scopes, life)
	err = db.Commit(ctx, b)
	if groupcommit.Constraint(err) == "api_keys_merchant_id_fkey" {
		return fmt.Errorf("there is no merchant %q: payonce seed registers one", k.Merchant)
	}
	if err != nil {
		return fmt.Errorf("create a key of %s: %w", k.Merchant, err)
	}
	made, err := merchants.FindKeys(ctx, db, k.Merchant, key)
	if err != nil {
		return err
	}
	if len(made) != 1 {
		return errors.New("the new key is gone again: another session deletes from api_keys")
	}
	if k.JSON {
		c.stdout.json(createdKey{Whole: key, Key: made[0]})
		return nil
	}
	c.stderr.printf("%s, a key of %s for %s, expires %s; it is shown this once and kept nowhere\n",
		made[0].Prefix, k.Merchant, scopesOf(made[0]), timeOr(made[0].ExpiresAt, "never"))
	c.stdout.printf("%s\n", key)
	return nil
}

type listKeysCmd struct {
	Merchant string `placeholder:"ID" help:"List only the keys of this merchant."`
	JSON     bool   `name:"json" help:"Print the keys as JSON."`
}

func (k listKeysCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.ListKeys(ctx, db, k.Merchant)
	if err != nil {
		return err
	}
	printKeys(&c.stdout, keys, k.JSON)
	return nil
}

type revokeKeyCmd struct {
	Prefix   string `arg:"" help:"Prefix of the key, as listed, or more of the key. A whole key names exactly one."`
	Merchant string `placeholder:"ID" help:"Search only the keys of this merchant."`
	All      bool   `help:"Revoke every key with the prefix, if there are several."`
	JSON     bool   `name:"json" help:"Print what was revoked as JSON."`
}

// run may be repeated: a key stays revoked since its first time. It does not print what was
// typed, which may be a whole key.
func (k revokeKeyCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, k.Merchant, k.Prefix)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New("no key is named so: payonce keys list shows the prefixes")
	case len(keys) > 1 && !k.All:
		printKeys(&c.stderr, keys, false)
		return fmt.Errorf("%d keys may be meant: give more of the key, --merchant, or --all to end them all", len(keys))
	}
	b := &pgx.Batch{}
	for _, key := range keys {
		merchants.RevokeKey(b, key)
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("revoke %d keys: %w", len(keys), err)
	}
	revoked, err := merchants.FindKeys(ctx, db, k.Merchant, k.Prefix)
	if err != nil {
		return err
	}
	printKeys(&c.stdout, revoked, k.JSON)
	return nil
}

func printKeys(p *printer, keys []merchants.Key, asJSON bool) {
	printList(p, asJSON, keys, "PREFIX\tMERCHANT\tSCOPES\tCREATED\tEXPIRES\tREVOKED", func(k merchants.Key) []any {
		return []any{k.Prefix, k.Merchant, scopesOf(k), k.CreatedAt, timeOr(k.ExpiresAt, "never"), timeOr(k.RevokedAt, "never")}
	})
}

func scopesOf(k merchants.Key) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(k.Scopes), "[]"), " ", ",")
}
