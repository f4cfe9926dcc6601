package arch_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlantedViolations shows that the checks can fail: each case plants one
// violation of the real map and names the sentence that it must cause.
func TestPlantedViolations(t *testing.T) {
	t.Parallel()
	at := func(path string) string { return module + "/" + path }
	only := func(path string) []room {
		for _, r := range rooms {
			if r.path == path {
				return []room{r}
			}
		}
		return nil
	}
	tests := []struct {
		name string
		got  []string
		want []string // how each sentence begins
	}{
		{
			name: "domain imports a package of a third party",
			got: checkRooms(only("domain"), []pkg{{
				ImportPath: at("domain"), Imports: []string{"errors", "github.com/google/uuid"},
			}}),
			want: []string{"domain must not import github.com/google/uuid: "},
		},
		{
			name: "domain may test itself with a third party",
			got: checkRooms(only("domain"), []pkg{{
				ImportPath: at("domain"), Imports: []string{"errors"},
				XTestImports: []string{at("domain"), "github.com/google/go-cmp/cmp"},
			}}),
		},
		{
			name: "a test of domain reaches for the database",
			got: checkRooms(only("domain"), []pkg{{
				ImportPath: at("domain"), XTestImports: []string{at("internal/postgres/pgtest")},
			}}),
			want: []string{"domain must not import internal/postgres/pgtest: "},
		},
		{
			name: "the ledger writes into the outbox",
			got: checkRooms(only("ledger"), []pkg{{
				ImportPath: at("ledger"), Imports: []string{at("domain"), at("outbox")},
			}}),
			want: []string{"ledger must not import outbox: "},
		},
		{
			name: "a test of the ledger may use a database",
			got: checkRooms(only("ledger"), []pkg{{
				ImportPath: at("ledger"), XTestImports: []string{at("internal/postgres/pgtest")},
			}}),
		},
		{
			name: "the inbox learns about charges",
			got: checkRooms(only("inbox"), []pkg{{
				ImportPath: at("inbox"), Imports: []string{at("domain"), at("internal/postgres")},
			}}),
			want: []string{"inbox must not import domain: "},
		},
		{
			name: "intake and fulfillment meet",
			got: checkRooms(append(only("intake"), only("fulfillment")...), []pkg{
				{ImportPath: at("intake"), Imports: []string{at("fulfillment")}},
				{ImportPath: at("fulfillment"), Imports: []string{at("intake")}},
			}),
			want: []string{"intake must not import fulfillment: ", "fulfillment must not import intake: "},
		},
		{
			name: "a handler calls the provider",
			got: checkRooms(only("internal/httpapi"), []pkg{{
				ImportPath: at("internal/httpapi"), Imports: []string{at("intake"), at("internal/stripe")},
			}}),
			want: []string{"internal/httpapi must not import internal/stripe: "},
		},
		{
			name: "the operator's tool accepts a charge",
			got: checkRooms(only("cmd/payonce"), []pkg{{
				ImportPath: at("cmd/payonce"), Imports: []string{at("internal/postgres"), at("intake")},
			}}),
			want: []string{"cmd/payonce must not import intake: "},
		},
		{
			name: "a stranger shares the product's code",
			got: checkRooms(only("e2e"), []pkg{{
				ImportPath: at("e2e"), XTestImports: []string{at("internal/fleet"), at("ledger")},
			}}),
			want: []string{"e2e must not import ledger: "},
		},
		{
			name: "a package without a room",
			got:  checkRooms(nil, []pkg{{ImportPath: at("internal/util")}}),
			want: []string{"internal/util is not on the map"},
		},
		{
			name: "a room without a package",
			got:  checkRooms(only("outbox"), nil),
			want: []string{"outbox is on the map and not in the tree"},
		},
		{
			name: "a step takes a Watermill message, and only its test an Echo context",
			got: checkGuests(guests, []pkg{{
				ImportPath:  at("fulfillment"),
				Imports:     []string{"github.com/ThreeDotsLabs/watermill/message"},
				TestImports: []string{"github.com/labstack/echo/v4"},
			}}),
			want: []string{
				"fulfillment must not import github.com/ThreeDotsLabs/watermill/message: ",
				"fulfillment must not import github.com/labstack/echo/v4: ",
			},
		},
		{
			name: "guests in their rooms",
			got: checkGuests(guests, []pkg{
				{ImportPath: at("internal/stripe"), XTestImports: []string{"github.com/stripe/stripe-go/v85"}},
				{ImportPath: at("outbox"), Imports: []string{"github.com/ThreeDotsLabs/watermill"}},
			}),
		},
		{
			name: "the api links stripe-go through a package that looks harmless",
			got: checkBans(bans, "cmd/api", []pkg{
				{ImportPath: at("cmd/api"), Imports: []string{"fmt", at("internal/audit")}},
				{ImportPath: at("internal/audit"), Imports: []string{"github.com/stripe/stripe-go/v85"}},
				{ImportPath: "github.com/stripe/stripe-go/v85"},
				{ImportPath: "fmt"},
			}),
			want: []string{"cmd/api must not link github.com/stripe: " + noProvider +
				"\n\t" + at("cmd/api") + "\n\timports " + at("internal/audit") + "\n\timports github.com/stripe/stripe-go/v85"},
		},
		{
			name: "a name that only begins alike is somebody else",
			got: checkBans(bans, "cmd/api", []pkg{
				{ImportPath: at("cmd/api"), Imports: []string{"github.com/stripes", at("internal/stripes"), "testing2"}},
			}),
		},
		{
			name: "a package that says nothing about itself",
			got: checkDocs([]pkg{
				{ImportPath: at("inbox"), Name: "inbox"},
				{ImportPath: at("outbox"), Name: "outbox", Doc: "Things that go out."},
				{ImportPath: at("ledger"), Name: "ledger", Doc: "Package ledger stores."},
				{ImportPath: at("cmd/api"), Name: "main", Doc: "Command api accepts."},
			}),
			want: []string{
				"inbox has no package doc",
				"outbox: the package doc does not begin with \"Package outbox\"",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if len(tt.got) != len(tt.want) {
				t.Fatalf("sentences (-want +got):\n%s", cmp.Diff(tt.want, tt.got))
			}
			for i := range tt.want {
				if !strings.HasPrefix(tt.got[i], tt.want[i]) {
					t.Errorf("sentence %d: got %q, want one that begins with %q", i, tt.got[i], tt.want[i])
				}
			}
		})
	}
}
