package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

type keysCmd struct {
	Create createKeyCmd `cmd:"" help:"Make an API key and print it, once."`
	List   listKeysCmd  `cmd:"" help:"List API keys, those that are over too, by their prefixes."`
	Revoke revokeKeyCmd `cmd:"" help:"End an API key: the next request with it is refused. It cannot be taken back."`
}

type createKeyCmd struct {
	Merchant string         `required:"" placeholder:"ID" help:"The merchant to whom the key belongs."`
	Scopes   []string       `required:"" help:"What the key is for: charges:write, charges:read, refunds:write, admin."`
	Expires  *time.Duration `placeholder:"720h" help:"How long the key lives; for ever without it."`
	JSON     bool           `name:"json" help:"Print the key and what it is for as JSON."`
}

// Run prints the key alone on stdout, and what it is for on stderr.
func (c createKeyCmd) Run(ctx context.Context) error {
	scopes, err := c.check()
	if err != nil {
		return err
	}
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error { return c.create(ctx, os.Stdout, os.Stderr, db, scopes) })
}

const shortestLife = time.Second

func (c createKeyCmd) check() ([]merchants.Scope, error) {
	if c.Expires != nil && *c.Expires < shortestLife {
		return nil, fmt.Errorf("--expires is %s: give a life of at least %s, or leave it out for a key that never expires", *c.Expires, shortestLife)
	}
	scopes, err := merchants.ParseScopes(c.Scopes)
	if err != nil {
		return nil, fmt.Errorf("--scopes: %w", err)
	}
	return scopes, nil
}

// createdKey is the one thing that shows a whole key.
type createdKey struct {
	Whole string `json:"key"`
	merchants.Key
}

// If we die here: after the commit and before the key is printed there is a key that no
// client has. It is listed and can be revoked.
func (c createKeyCmd) create(ctx context.Context, stdout, stderr io.Writer, db *postgres.DB, scopes []merchants.Scope) error {
	key := merchants.NewKey()
	var life time.Duration
	if c.Expires != nil {
		life = *c.Expires
	}
	b := &pgx.Batch{}
	merchants.IssueKey(b, c.Merchant, key, scopes, life)
	err := db.Commit(ctx, b)
	if postgres.Constraint(err) == "api_keys_merchant_id_fkey" {
		return fmt.Errorf("there is no merchant %q: payonce seed registers one", c.Merchant)
	}
	if err != nil {
		return fmt.Errorf("create a key of %s: %w", c.Merchant, err)
	}
	made, err := merchants.FindKeys(ctx, db, c.Merchant, key)
	if err != nil {
		return err
	}
	if len(made) != 1 {
		return errors.New("the new key is gone again: another session deletes from api_keys")
	}
	if c.JSON {
		return printJSON(stdout, createdKey{Whole: key, Key: made[0]})
	}
	fmt.Fprintf(stderr, "%s, a key of %s for %s, expires %s; it is shown this once and kept nowhere\n",
		made[0].Prefix, c.Merchant, scopesOf(made[0]), timeOr(made[0].ExpiresAt, "never"))
	fmt.Fprintln(stdout, key)
	return nil
}

type listKeysCmd struct {
	Merchant string `placeholder:"ID" help:"List this merchant's alone."`
	JSON     bool   `name:"json" help:"Print the keys as JSON."`
}

// Run lists on stdout.
func (c listKeysCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error { return c.list(ctx, os.Stdout, db) })
}

func (c listKeysCmd) list(ctx context.Context, w io.Writer, q postgres.Querier) error {
	keys, err := merchants.ListKeys(ctx, q, c.Merchant)
	if err != nil {
		return err
	}
	return printKeys(w, keys, c.JSON)
}

type revokeKeyCmd struct {
	Prefix   string `arg:"" help:"The key, by its prefix in the list. More of it may be given; a whole key is never mistaken for another."`
	Merchant string `placeholder:"ID" help:"Look at this merchant's keys alone."`
	All      bool   `help:"End every key that has the prefix, where there are several."`
	JSON     bool   `name:"json" help:"Print what was revoked as JSON."`
}

// Run may be repeated: a key stays revoked since its first time.
func (c revokeKeyCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error { return c.revoke(ctx, os.Stdout, os.Stderr, db) })
}

// What was typed is not repeated, for it may be a whole key.
func (c revokeKeyCmd) revoke(ctx context.Context, stdout, stderr io.Writer, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, c.Merchant, c.Prefix)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New("no key is named so: payonce keys list shows the prefixes")
	case len(keys) > 1 && !c.All:
		if err := printKeys(stderr, keys, false); err != nil {
			return err
		}
		return fmt.Errorf("%d keys may be meant: give more of the key, --merchant, or --all to end them all", len(keys))
	}
	b := &pgx.Batch{}
	for _, k := range keys {
		merchants.RevokeKey(b, k)
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("revoke %d keys: %w", len(keys), err)
	}
	revoked, err := merchants.FindKeys(ctx, db, c.Merchant, c.Prefix)
	if err != nil {
		return err
	}
	return printKeys(stdout, revoked, c.JSON)
}

func printKeys(w io.Writer, keys []merchants.Key, asJSON bool) error {
	return printList(w, asJSON, keys, "PREFIX\tMERCHANT\tSCOPES\tCREATED\tEXPIRES\tREVOKED", func(k merchants.Key) []any {
		return []any{k.Prefix, k.Merchant, scopesOf(k), k.CreatedAt, timeOr(k.ExpiresAt, "never"), timeOr(k.RevokedAt, "never")}
	})
}

func scopesOf(k merchants.Key) string {
	names := make([]string, len(k.Scopes))
	for i, s := range k.Scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ",")
}
