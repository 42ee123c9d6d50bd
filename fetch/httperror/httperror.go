// Package httperror is the error response of the program's HTTP servers: a status code and the JSON
// document {"error": "MESSAGE"}. The servers of the packages upload, peer and api write it; their
// clients read it.
package httperror

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// Error is the reason why a server rejects a request.
type Error struct {
	Status  int    // an HTTP status code, 400 to 599
	Message string // one human-readable line
}

// New returns an Error with a formatted message.
func New(status int, format string, args ...any) *Error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// Error returns only the message. The client adds the name of the server.
func (e *Error) Error() string { return e.Message }

// document is the body of an error response.
type document struct {
	Error string `json:"error"`
}

// Write sends the response. The caller must set other headers, such as Retry-After, before the call.
func (e *Error) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	body, err := json.Marshal(document{e.Message})
	if err != nil {
		panic("encode an error message: " + err.Error())
	}
	_, _ = w.Write(append(text.PrintableJSON(body), '\n')) // fails only if the client has disconnected
}

// Read returns the error in a response with this status and body. If the body is not the document of
// this package, the message is the name of the status.
func Read(status int, body []byte) *Error {
	var d document
	if json.Unmarshal(body, &d) != nil || d.Error == "" {
		return New(status, "%d %s", status, http.StatusText(status))
	}
	return &Error{status, d.Error}
}
