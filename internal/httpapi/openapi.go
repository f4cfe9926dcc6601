package httpapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// contract is what callers may rely on. The tests hold every answer to it.
//
//go:embed openapi.yaml
var contract []byte

const (
	headerETag         = "ETag"
	headerIfNoneMatch  = "If-None-Match"
	cacheAndAskAlways  = "no-cache"
	maxTagsInCondition = 16
)

// getContract is GET /openapi.yaml.
func (a *API) getContract(c echo.Context) error {
	return document(c, "application/yaml", contract)
}

// document sends what is the same for everybody until the program is replaced. A
// caller that has it is told so.
func document(c echo.Context, mediaType string, content []byte) error {
	sum := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	h := c.Response().Header()
	h.Set(headerETag, tag)
	h.Set(echo.HeaderCacheControl, cacheAndAskAlways)
	if has(c.Request().Header.Get(headerIfNoneMatch), tag) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.Blob(http.StatusOK, mediaType, content)
}

// has tells whether a condition names a tag. Weak ones count as strong
// (RFC 9110, section 13.1.2).
func has(condition, tag string) bool {
	for _, t := range strings.SplitN(condition, ",", maxTagsInCondition) {
		t = strings.TrimPrefix(strings.TrimSpace(t), "W/")
		if t == tag || t == "*" {
			return true
		}
	}
	return false
}
