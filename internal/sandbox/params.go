package sandbox

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	amountMax        = 1_000_000_000_000
	metadataKeys     = 50
	metadataKeyMax   = 40
	metadataValueMax = 500
	limitDefault     = 10
	limitMax         = 100
)

// params reads form parameters (a=1, a[b]=2, a[]=3). It keeps the first fault. It
// records the known parameters, so that done can refuse the others.
type params struct {
	values url.Values
	known  map[string]bool
	fault  *apiError
}

// readParams decodes an encoded form. It refuses NUL and invalid UTF-8.
func readParams(encoded string) (*params, *apiError) {
	values, err := url.ParseQuery(encoded)
	if err != nil {
		return nil, invalid("", "", "The parameters are not a valid form encoding.")
	}
	for name, all := range values {
		for _, text := range append(all, name) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return nil, invalid("", "", "Parameters must be UTF-8 without NUL.")
			}
		}
	}
	return &params{values: values, known: make(map[string]bool)}, nil
}

func (p *params) refuse(e *apiError) {
	if p.fault == nil {
		p.fault = e
	}
}

// done returns the first fault, unknown parameters included.
func (p *params) done() error {
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		base, _, _ := strings.Cut(name, "[")
		if !p.known[base] {
			p.refuse(invalid("parameter_unknown", name, "Received unknown parameter: %s.", name))
		}
	}
	if p.fault != nil { // a nil *apiError must not become a non-nil error
		return p.fault
	}
	return nil
}

// ignore marks parameters that are accepted and change nothing here.
func (p *params) ignore(names ...string) {
	for _, name := range names {
		p.known[name] = true
	}
}

// text returns the parameter's single value, "" when absent.
func (p *params) text(name string) string {
	p.known[name] = true
	for other := range p.values {
		if strings.HasPrefix(other, name+"[") {
			p.refuse(invalid("", name, "Invalid %s: must be a single value.", name))
		}
	}
	if len(p.values[name]) > 1 {
		p.refuse(invalid("", name, "Invalid %s: given more than once.", name))
		return ""
	}
	return p.values.Get(name)
}

// amount is in minor units of Stripe: 1 ... amountMax, 0 when absent.
func (p *params) amount(name string) int64 {
	value := p.text(name)
	if !p.values.Has(name) {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case err != nil:
		p.refuse(invalid("parameter_invalid_integer", name, "Invalid integer: %s.", value))
	case n < 1:
		p.refuse(invalid("parameter_invalid_integer", name, "This value must be greater than or equal to 1."))
	case n > amountMax:
		p.refuse(invalid("amount_too_large", name, "Amount must be no more than %d.", int64(amountMax)))
	}
	return n
}

func (p *params) boolean(name string) bool {
	return p.word(name, "false", "true") == "true"
}

// word is one of the words, the first when absent.
func (p *params) word(name string, words ...string) string {
	value := p.text(name)
	if !p.values.Has(name) {
		return words[0]
	}
	if !slices.Contains(words, value) {
		p.refuse(invalid("", name, "Invalid %s: must be one of %s.", name, strings.Join(words, ", ")))
	}
	return value
}

// limit is the size of a page, 1 ... 100.
func (p *params) limit() int {
	value := p.text("limit")
	if value == "" {
		return limitDefault
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > limitMax {
		p.refuse(invalid("parameter_invalid_integer", "limit", "Invalid limit: must be between 1 and %d.", limitMax))
	}
	return n
}

// since is created[gte], the earliest creation that a list shows, in seconds; 0 when absent.
func (p *params) since() int64 {
	const name = "created[gte]"
	p.known["created"] = true
	for other := range p.values {
		if strings.HasPrefix(other, "created") && other != name {
			p.refuse(invalid("parameter_unknown", other, "Received unknown parameter: %s. (The sandbox knows %s.)", other, name))
		}
	}
	n, err := strconv.ParseInt(cmp.Or(p.values.Get(name), "0"), 10, 64)
	if err != nil || n < 0 {
		p.refuse(invalid("parameter_invalid_integer", name, "Invalid integer: %s.", p.values.Get(name)))
	}
	return n
}

// metadata collects metadata[key]=value; an empty value is no entry.
func (p *params) metadata() map[string]string {
	p.known["metadata"] = true
	entries := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		rest, ok := strings.CutPrefix(name, "metadata")
		if !ok || (rest != "" && rest[0] != '[') {
			continue
		}
		inner, opened := strings.CutPrefix(rest, "[")
		key, closed := strings.CutSuffix(inner, "]")
		switch value := p.values.Get(name); {
		case !opened || !closed || key == "" || strings.ContainsAny(key, "[]"):
			p.refuse(invalid("", name, "Metadata is a set of pairs: metadata[key]=value."))
		case len(p.values[name]) > 1:
			p.refuse(invalid("", name, "Invalid %s: given more than once.", name))
		case utf8.RuneCountInString(key) > metadataKeyMax:
			p.refuse(invalid("", name, "Metadata keys hold at most %d characters.", metadataKeyMax))
		case utf8.RuneCountInString(value) > metadataValueMax:
			p.refuse(invalid("", name, "Metadata values hold at most %d characters.", metadataValueMax))
		case value != "":
			entries[key] = value
		}
	}
	if len(entries) > metadataKeys {
		p.refuse(invalid("", "metadata", "Metadata holds at most %d pairs.", metadataKeys))
	}
	return entries
}
