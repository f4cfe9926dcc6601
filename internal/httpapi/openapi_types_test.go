package httpapi_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
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
// by the value that it has. Three unions have none: one with null, and two with an empty object. A key
// without a value is the rest of a text that has a comma and no quotes.
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
				for _, value := range constants(schemaAt(t, strings.TrimPrefix(alternative["$ref"], "#/components/schemas/")), by) {
					want[value] = alternative["$ref"]
				}
			}
			testrun.Same(t, fmt.Sprint("the mapping of line ", node.Line), want, union.Discriminator.Mapping)
		}
		for _, child := range node.Content {
			if child.Tag == "!!null" && child.Value == "" {
				t.Errorf("a key of line %d has no value", child.Line)
			}
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

// exchanged sends a call to a handler and returns both sides of it.
func exchanged(t *testing.T, api http.Handler, c call) (e exchange) {
	t.Helper()
	direct(t, recorded(api, func(seen exchange) { e = seen }), c)
	return e
}

// TestContract_acceptsTheSameBodies sends a body at and beyond each bound of the
// schemas of requests. It is refused if and only if the contract refuses it. So the
// checks of validate.go are written by hand, and the contract decides each bound.
func TestContract_acceptsTheSameBodies(t *testing.T) {
	testrun.Long(t, "it sends each body that the contract refuses")
	t.Parallel()
	api, c := serve(t).handler, theContract(t)
	for path, schema := range map[string]string{
		"/v1/charges": "ChargeRequest", "/v1/charges/ch_1/refunds": "RefundRequest", "/v1/charges/ch_1/cancel": "Nothing",
	} {
		verdicts := map[bool]int{}
		for i, body := range values(schemaAt(t, schema)) {
			e := exchanged(t, api, to(path, "key-"+strconv.Itoa(i), body))
			refused := e.status == http.StatusBadRequest || e.status == http.StatusUnprocessableEntity
			want := c.checkRequest(e)
			if refused != (want != nil) {
				t.Errorf("%s with %.300s is answered %d %s, by the contract: %v", path, body, e.status, e.body, want)
			}
			verdicts[refused]++
		}
		if verdicts[true] < 5 || verdicts[false] == 0 {
			t.Errorf("%s: refused and accepted are %v", path, verdicts)
		}
	}
}

// values are JSON for a schema: one that fits it, then others at and beyond its bounds.
func values(s *base.Schema) []string {
	all := []string{fitting(s), "null", "true", "1", `"1"`, "[]", "{}", `["a"]`}
	switch {
	case slices.Contains(s.Type, "integer"):
		for _, bound := range []*float64{s.Minimum, s.Maximum} {
			for beside := int64(-1); bound != nil && beside <= 1; beside++ {
				all = append(all, strconv.FormatInt(int64(*bound)+beside, 10))
			}
		}
		all = append(all, strconv.FormatInt(math.MinInt64, 10), "9223372036854775808")
	case slices.Contains(s.Type, "string"):
		all = append(all, `""`, `"\u0000"`, `"4242424242424242"`, `"x 4242-4242 4242\u00a04242"`, `"4242424242424241"`,
			`"42424242-4242-4242-8242-abcdefabcdef"`, `"usd"`, `"XYZ"`,
			`"https://shop.example/back?order=17#paid"`, `"http://shop.example"`, `"https://user:secret@shop.example"`, `"https://"`, `"//shop.example"`,
			`"2999-11-26T16:40:00.5+01:00"`, `"2999-11-26"`)
		if s.MaxLength != nil {
			all = append(all, text(int(*s.MaxLength)), text(int(*s.MaxLength)+1))
		}
	case slices.Contains(s.Type, "array"):
		all = append(all, items(int(*s.MaxItems)), items(int(*s.MaxItems)+1))
		for _, item := range values(s.Items.A.Schema()) {
			all = append(all, "["+item+"]")
		}
	case s.PropertyNames != nil:
		all = append(all, pairs(int(*s.MaxProperties)), pairs(int(*s.MaxProperties)+1))
		for _, value := range values(s.AdditionalProperties.A.Schema()) {
			all = append(all, `{"a":`+value+`}`)
		}
		for _, name := range values(s.PropertyNames.Schema()) {
			if strings.HasPrefix(name, `"`) {
				all = append(all, `{`+name+`:"a"}`)
			}
		}
	default:
		for name, property := range s.Properties.FromOldest() {
			for _, value := range append(values(property.Schema()), "") {
				all = append(all, objectOf(s, name, value))
			}
			all = append(all, objectOf(s, strings.ToUpper(name), fitting(property.Schema())))
		}
		all = append(all, objectOf(s, "tip", "1"))
	}
	return all
}

// fitting is a value that fits a schema.
func fitting(s *base.Schema) string {
	switch {
	case s.Format == "iso-4217":
		return `"USD"`
	case slices.Contains(s.Type, "integer"):
		return strconv.FormatInt(int64(*s.Minimum), 10)
	case slices.Contains(s.Type, "string"):
		return `"a"`
	case slices.Contains(s.Type, "array"):
		return "[]"
	}
	return objectOf(s, "", "")
}

// objectOf has the required members of a schema, and one that is given or, if it is
// empty, left out.
func objectOf(s *base.Schema, name, value string) string {
	var members []string
	for _, required := range s.Required {
		if required != name {
			members = append(members, fmt.Sprintf("%q:%s", required, fitting(s.Properties.GetOrZero(required).Schema())))
		}
	}
	if value != "" {
		members = append(members, fmt.Sprintf("%q:%s", name, value))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// TestContract_acceptsTheSameParameters does the same with parameters of paths,
// queries and headers. What is found by an id that fits is another question. A refusal names the
// parameter of the query.
func TestContract_acceptsTheSameParameters(t *testing.T) {
	testrun.Long(t, "it sends each parameter that the contract refuses")
	t.Parallel()
	w := serve(t)
	api, c := w.handler, theContract(t)
	charge := idOf(w.accept(t, "a-charge", body()).header.Get("Location"))
	bodies := map[string]string{"/v1/charges": body(), "/v1/charges/{id}/refunds": `{"amount":1}`}
	verdicts := map[string]map[bool]int{}
	operations(c, func(method, path string, _ *v3.Operation, parameters []*v3.Parameter) {
		if path == "/v1/webhooks/stripe" { // takes a signature alone
			return
		}
		for _, p := range parameters {
			name := p.In + " " + p.Name
			if verdicts[name] == nil {
				verdicts[name] = map[bool]int{}
			}
			for i, value := range parameterValues(p.Schema.Schema()) {
				key, where := fmt.Sprint(path, p.Name, i), path
				call := to("", key, bodies[path]).like(method)
				switch p.In {
				case "path":
					where = strings.Replace(path, "{"+p.Name+"}", url.PathEscape(value), 1)
				case "query":
					where += "?" + p.Name + "=" + url.QueryEscape(value)
				case "header":
					call = call.with(p.Name, value)
				}
				call.path = strings.NewReplacer("{id}", charge, "{refund}", "re_1", "{key}", "a-charge").Replace(where)
				e := exchanged(t, api, call)
				want := c.checkRequest(e)
				refused := e.status == http.StatusBadRequest || e.status == http.StatusUnprocessableEntity
				found := p.In == "path" || p.Name == "starting_after" || p.Name == "after"
				if want != nil && !refused && e.status != http.StatusNotFound || want == nil && refused && !found {
					t.Errorf("%s %s with %q is answered %d %s, by the contract: %v", method, call.path, value, e.status, e.body, want)
				}
				if refused && p.In == "query" {
					wantPointers(t, readProblem(t, e.answer), "/"+p.Name)
				}
				verdicts[name][want != nil]++
			}
		}
	})
	for name, of := range verdicts {
		anything := name == "header Prefer" || name == "header X-Request-Id"
		if of[false] == 0 || of[true] == 0 && !anything {
			t.Errorf("of %s the contract refuses and takes %v", name, of)
		}
	}
}

// parameterValues are texts for a parameter: some that fit, and some that nearly do.
func parameterValues(s *base.Schema) []string {
	all := []string{"a", "1", "0", "-1", "x y", "\x00", "4242424242424242", "4242424242424241", `"a"`, `"`, `"a\"b\\"`, "é"}
	for _, value := range s.Enum {
		all = append(all, value.Value, strings.ToUpper(value.Value))
	}
	for _, bound := range []*float64{s.Minimum, s.Maximum} {
		for beside := int64(-1); bound != nil && beside <= 1; beside++ {
			all = append(all, strconv.FormatInt(int64(*bound)+beside, 10))
		}
	}
	return append(all, strings.Repeat("k", 255), strings.Repeat("k", 256))
}
