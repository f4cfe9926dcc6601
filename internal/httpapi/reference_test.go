package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi/datamodel/high/base"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/reference"
)

// TestReference_events writes the page of events: the types of the registry in domain, the stored
// example of each, and what the contract says of members that no section above describes.
func TestReference_events(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	described := make(map[string]bool)
	for _, event := range domain.EventTypes() {
		schema := schemaAt(t, reflect.TypeOf(event.Zero).Name())
		golden, err := os.ReadFile("../../domain/testdata/events/" + event.Name + ".json")
		var example bytes.Buffer
		if err := errors.Join(err, json.Compact(&example, golden)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "### %s\n\n%s%s\n\n", event.Name, schema.Description, effectsOf(event))
		var rows [][]string
		var optional []string
		for name, proxy := range schema.Properties.FromOldest() {
			member := proxy.Schema()
			if !slices.Contains(schema.Required, name) {
				optional = append(optional, reference.Code(name))
			}
			meaning, _, _ := strings.Cut(member.Description, "\n")
			meaning = strings.TrimSpace(meaning + valuesOf(member))
			if key := name + meaning; meaning != "" && !described[key] {
				described[key] = true
				rows = append(rows, []string{reference.Code(name), meaning})
			}
		}
		text.WriteString(reference.List(rows))
		if len(optional) > 0 {
			text.WriteString("Optional: " + strings.Join(optional, ", ") + ".\n\n")
		}
		if len(example.String()) > len("{}") {
			fmt.Fprintf(&text, "```json\n%s\n```\n\n", example.String())
		}
	}
	reference.Section(t, "events.md", "Types", text.String())
}

// effectsOf says what follows from an event, and whether the api appends it.
func effectsOf(event domain.EventType) (effects string) {
	if event.Request {
		effects = " The api appends it."
	}
	if event.Posts {
		effects += " It has postings."
	}
	if event.Webhook != "" {
		effects += " Webhook: " + reference.Code(event.Webhook) + "."
	}
	return effects
}

// valuesOf are the values that a member is limited to.
func valuesOf(s *base.Schema) string {
	var values []string
	for _, value := range s.Enum {
		values = append(values, reference.Code(value.Value))
	}
	if len(values) == 0 {
		return ""
	}
	return " One of " + strings.Join(values, ", ") + "."
}
