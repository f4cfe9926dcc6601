package stripe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/stripe"
)

func TestNew_refusesUnusableSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  stripe.Config
		says string // "" if it is accepted
	}{
		"Stripe itself":              {stripe.Config{SecretKey: "sk_live_x"}, ""},
		"an origin":                  {stripe.Config{SecretKey: "sk_live_x", Base: "https://api.stripe.com"}, ""},
		"an origin with a slash":     {stripe.Config{SecretKey: "sk_test_x", Base: "http://127.0.0.1:8090/"}, ""},
		"an IPv6 origin":             {stripe.Config{SecretKey: "sk_test_x", Base: "http://[::1]:8090"}, ""},
		"a host of the same network": {stripe.Config{SecretKey: "sk_test_x", Base: "http://sandbox:8090", Timeout: time.Second}, ""},

		"no secret key":            {stripe.Config{}, "STRIPE_SECRET_KEY"},
		"a key with a line break":  {stripe.Config{SecretKey: "sk_test_hush\n"}, "STRIPE_SECRET_KEY"},
		"a version in the address": {stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com/v1"}, "STRIPE_API_BASE"},
		"a query in the address":   {stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com?a=b"}, "STRIPE_API_BASE"},
		"a fragment":               {stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com/#v1"}, "STRIPE_API_BASE"},
		"no scheme":                {stripe.Config{SecretKey: "sk_test_hush", Base: "api.stripe.com"}, "STRIPE_API_BASE"},
		"a host and port alone":    {stripe.Config{SecretKey: "sk_test_hush", Base: "localhost:8090"}, "STRIPE_API_BASE"},
		"another scheme":           {stripe.Config{SecretKey: "sk_test_hush", Base: "ftp://api.stripe.com"}, "STRIPE_API_BASE"},
		"no host":                  {stripe.Config{SecretKey: "sk_test_hush", Base: "https://:443"}, "STRIPE_API_BASE"},
		"no URL":                   {stripe.Config{SecretKey: "sk_test_hush", Base: "http://%zz"}, "STRIPE_API_BASE"},
		"a password":               {stripe.Config{SecretKey: "sk_test_hush", Base: "https://me:hush@api.stripe.com"}, "STRIPE_API_BASE"},
		"a live key in the clear":  {stripe.Config{SecretKey: "sk_live_hush", Base: "http://api.stripe.com"}, "https://"},
		"a restricted live key":    {stripe.Config{SecretKey: "rk_live_hush", Base: "http://api.stripe.com"}, "https://"},
		"a negative time-out":      {stripe.Config{SecretKey: "sk_test_hush", Timeout: -time.Second}, "time-out"},
	} {
		_, err := stripe.New(tc.cfg)
		if tc.says == "" && err == nil {
			continue
		}
		if tc.says == "" || err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: error is %v, want one that names %s and no secret", name, err, tc.says)
		}
	}
}
