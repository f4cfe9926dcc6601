package httpapi_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi/datamodel/high/base"
	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger/books"
)

// TestContract_hasEveryEvent: the stored form of each event, as package domain keeps it, is an event of the contract, which
// lists the members of its Go type, and which of them are always there. It lists no other event.
func TestContract_hasEveryEvent(t *testing.T) {
	t.Parallel()
	kinds := domain.EventTypes()
	for _, kind := range kinds {
		stored, err := os.ReadFile("../../domain/testdata/events/" + kind.Name + ".json")
		testdb.Must(t, err)
		e := exchange{request: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/charges/ch_1/events", http.NoBody)}
		e.answer = answer{http.StatusOK, http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"req-1"}}, fmt.Sprintf(
			`{"data":[{"version":1,"id":"01a1fd33-6ed4-7bf6-827f-5db90a1e2454","type":%q,"recorded_at":"2026-11-26T17:00:00Z","data":%s}]}`, kind.Name, stored)}
		if err := theContract(t).check(e); err != nil {
			t.Errorf("%s: %v", kind.Name, err)
		}
		wantMembers(t, reflect.TypeOf(kind.Zero).Name(), reflect.TypeOf(kind.Zero))
	}
	if choices := schemaAt(t, "Event").OneOf; len(choices) != len(kinds) {
		t.Errorf("the contract has %d events, the code %d", len(choices), len(kinds))
	}
}

// TestContract_hasTheMembersOfTheGoTypes compares the members of what is read or written with its schema, in both
// directions: their names, and which are always there.
func TestContract_hasTheMembersOfTheGoTypes(t *testing.T) {
	t.Parallel()
	for name, goType := range map[string]reflect.Type{
		"ChargeRequest": reflect.TypeFor[intake.Charge](), "Item": reflect.TypeFor[domain.Item](), "RefundRequest": reflect.TypeFor[intake.Refund](),
		"Charge": reflect.TypeFor[domain.View](), "Step": reflect.TypeFor[domain.StepState](), "Failure": reflect.TypeFor[domain.Failure](),
		"Refund": reflect.TypeFor[domain.RefundView](), "Balances": reflect.TypeFor[books.Balances](), "Balance": reflect.TypeFor[books.Balance](),
		"NotificationPage": reflect.TypeFor[books.FeedPage](), "UnreadableEvent": reflect.TypeFor[books.FeedEvent](),
		"Problem": reflect.TypeFor[httpapi.Problem](),
	} {
		wantMembers(t, name, goType)
	}
}

func wantMembers(t *testing.T, name string, goType reflect.Type) {
	t.Helper()
	schema, listed := schemaAt(t, name), map[string]bool{}
	for property := range schema.Properties.KeysFromOldest() {
		listed[property] = slices.Contains(schema.Required, property)
	}
	testrun.Same(t, "members of "+name+" that are always there", membersOf(goType), listed)
}

// membersOf are the JSON members of a struct, and whether each is always there.
func membersOf(t reflect.Type) map[string]bool {
	all := map[string]bool{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			maps.Copy(all, membersOf(f.Type))
		case name != "-" && name != "":
			all[name] = !strings.HasPrefix(options, "omit")
		}
	}
	return all
}

// constants are the values that a schema allows for a member that it requires: of two parts, a base
// and what it narrows, the constant, else those of its enumeration. "" if it allows any.
func constants(s *base.Schema, member string) (values []string) {
	required, of := s.Required, s.Properties
	if len(s.AllOf) == 2 {
		required, of = s.AllOf[0].Schema().Required, s.AllOf[1].Schema().Properties
	}
	if !slices.Contains(required, member) || of.GetOrZero(member) == nil {
		return []string{""}
	}
	allowed := of.GetOrZero(member).Schema()
	for _, value := range append(allowed.Enum, allowed.Const) {
		if value != nil {
			values = append(values, value.Value)
		}
	}
	return values
}

// TestContract_unionsHaveDiscriminators, which name all of their alternatives, each
// by the value that it has. Two unions have none: with null, and with an empty object.
func TestContract_unionsHaveDiscriminators(t *testing.T) {
	t.Parallel()
	var tree yaml.Node
	document, err := os.ReadFile(contractFile)
	testdb.Must(t, cmp.Or(err, yaml.Unmarshal(document, &tree)))
	others := 0
	var walk func(*yaml.Node)
	walk = func(node *yaml.Node) {
		var union struct {
			OneOf         []map[string]string `yaml:"oneOf"`
			Discriminator struct {
				PropertyName string `yaml:"propertyName"`
				Mapping      map[string]string
			}
		}
		if node.Kind == yaml.MappingNode && node.Decode(&union) == nil && len(union.OneOf) > 0 {
			want, by := map[string]string{}, union.Discriminator.PropertyName
			if by == "" {
				others++
				return
			}
			for _, alternative := range union.OneOf {
				for _, value := range constants(schemaAt(t, path.Base(alternative["$ref"])), by) {
					want[value] = alternative["$ref"]
				}
			}
			testrun.Same(t, fmt.Sprint("the mapping of line ", node.Line), want, union.Discriminator.Mapping)
		}
		for _, child := range node.Content {
			walk(child)
		}
	}
	walk(&tree)
	if others != 3 { // Charge/failure, and the 202 of a charge and of a refund
		t.Errorf("%d unions have no discriminator", others)
	}
}

// TestContract_hasTheValuesOfTheCode: what a member can be is what the code can say.
func TestContract_hasTheValuesOfTheCode(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]any{
		"ChargeStatus": []domain.Status{domain.Pending, domain.RequiresAction, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded},
		"Step/status": []domain.StepStatus{
			domain.StepPending, domain.StepDone, domain.StepFailed, domain.StepSkipped, domain.StepCompensated,
		},
		"FailureCode": []domain.FailureCode{
			domain.OutOfStock, domain.UnknownSKU, domain.CardDeclined, domain.AuthenticationRequired, domain.ProviderRefused, domain.Canceled, domain.Expired, domain.AuthenticationTimeout,
		},
		"Refund/status": []domain.RefundStatus{
			domain.RefundStatusPending, domain.RefundStatusSucceeded, domain.RefundStatusFailed,
		},
		"PaymentAttemptFailed/stage": []domain.Stage{domain.StageCreate, domain.StageConfirm},
	} {
		var got []string
		for _, value := range schemaAt(t, name).Enum {
			got = append(got, value.Value)
		}
		testrun.Same(t, name, strings.Fields(strings.Trim(fmt.Sprint(want), "[]")), got)
	}
	if names, most := schemaAt(t, "StepName").Enum, schemaAt(t, "Charge/steps").MaxItems; names != nil || most != nil {
		t.Errorf("a client accepts no step of a later version: %d names, %v", len(names), most)
	}
	want, got := map[string]string{}, map[string]string{} // what the manual and the contract say of each problem
	for _, row := range manual("problems.md", "/problems/") {
		want[row[0]] = fmt.Sprint(strings.Split(row[1], " ")[:1], row[2], row[3])
	}
	for name, proxy := range theContract(t).Components.Schemas.FromOldest() {
		if kind := constants(proxy.Schema(), "type"); strings.HasSuffix(name, "Problem") && name != "Problem" {
			says := func(member string) string { return constants(proxy.Schema(), member)[0] }
			got[kind[0]] = fmt.Sprint([]string{says("status")}, says("retryable"), cmp.Or(says("retry_with"), "same-key"))
		}
	}
	elsewhere := theContract(t).Paths.PathItems.GetOrZero(elsewhere).Get.Responses.Codes
	refused := elsewhere.GetOrZero("405").Content.GetOrZero("application/problem+json").Schema
	for _, kind := range constants(refused.Schema(), "type") {
		got[kind] = want[kind]
	}
	testrun.Same(t, "problems", want, got)
}
