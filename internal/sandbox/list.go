package sandbox

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
)

func unrecognized(c *call, _ *change) (any, error) {
	return nil, refuse(http.StatusNotFound, "", "", "Unrecognized request URL (%s: %s).", c.Method, c.URL.Path)
}

// retrieveAccount answers the one account, whatever the key.
func retrieveAccount(*call, *change) (any, error) {
	a := maps.Clone(stripe.Objects["account"])
	a["id"] = "acct_sandbox"
	return a, nil
}

// retrieve answers the object that the path names.
func (s *Sandbox) retrieve(kind, param string) endpoint {
	return func(c *call, _ *change) (any, error) {
		if o := s.books.get(kind, c.PathValue("id")); o != nil {
			return o, nil
		}
		return nil, noSuch(http.StatusNotFound, kind, param, c.PathValue("id"))
	}
}

// list answers a page of the objects of a kind, newest first. Each parameter but those of the page is a
// member that the objects must have.
func (s *Sandbox) list(kind string) endpoint {
	return func(c *call, _ *change) (any, error) {
		ids := s.books.ids[kind]
		if cursor := c.params.Get("starting_after"); cursor != "" {
			at := slices.Index(ids, cursor)
			if at < 0 {
				return nil, noSuch(http.StatusBadRequest, kind, "starting_after", cursor)
			}
			ids = ids[:at]
		}
		limit := int(cmp.Or(c.params.number("limit"), limitDefault))
		page := []object{}
		for _, id := range slices.Backward(ids) {
			if o := s.books.objects[id]; c.params.match(o) {
				page = append(page, o.shown())
			}
			if len(page) > limit {
				break
			}
		}
		return object{"object": "list", "url": c.URL.Path, "has_more": len(page) > limit, "data": page[:min(len(page), limit)]}, nil
	}
}

// match reports whether an object has the members that the parameters of a list name.
func (p params) match(o object) bool {
	for name := range p.Values {
		if !strings.Contains(ofPage, name) && o[name] != p.Get(name) {
			return false
		}
	}
	return true
}
