package stripe

import (
	"context"
	"errors"
	"net/http"
	"strings"

	stripego "github.com/stripe/stripe-go/v85"
)

// Account is an account of the provider in one of its modes, which share nothing.
type Account struct {
	ID   string // "none" at a server that has no accounts
	Live bool
}

// Account is Config.Account, or retrieves the account of the secret key. The mode is the key's
// own: no answer names it.
func (c *Client) Account(ctx context.Context) (a Account, err error) {
	if c.account != "" {
		return Account{ID: c.account, Live: isLive(c.key)}, nil
	}
	defer wrap(&err, "retrieve", "the account of STRIPE_SECRET_KEY")
	a, err = ask(ctx, c, func(ctx context.Context) (*stripego.Account, error) {
		return c.api.V1Accounts.Retrieve(ctx, nil)
	}, func(sent *stripego.Account) (Account, error) {
		if sent.Object != "account" || checkID(sent.ID) != nil {
			return Account{}, errors.New("the answer holds no account")
		}
		return Account{ID: sent.ID}, nil
	})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && rejected.StatusCode == http.StatusNotFound {
		a, err = Account{ID: "none"}, nil
	}
	a.Live = err == nil && isLive(c.key)
	return a, err
}

// isLive reports whether a secret or restricted key is one of live mode.
func isLive(key string) bool { return strings.Contains(key, "_live_") }
