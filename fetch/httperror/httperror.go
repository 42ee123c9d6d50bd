// Package httperror is the error response of the program's HTTP servers, at both ends:
// a status code and the JSON document {"error": "MESSAGE"}. The servers of packages
// upload, peer and api write it; their clients read it.
package httperror

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Error is the reason for which a server refuses a request.
type Error struct {
	Status  int    // an HTTP status code, 400 to 599
	Message string // one line for people
}

// New returns an Error with a formatted message.
func New(status int, format string, args ...any) *Error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// Error returns the message alone. A client adds which server sent it.
func (e *Error) Error() string { return e.Message }

// document is the body of an error response.
type document struct {
	Error string `json:"error"`
}

// Write sends the response. The caller sets headers of its own, such as Retry-After,
// before.
func (e *Error) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(document{e.Message}) // fails only when the client is gone
}

// Read returns the error in a response of this status and body. A server that is not
// ours sends no such document: the message is then the name of the status.
func Read(status int, body []byte) *Error {
	var d document
	if json.Unmarshal(body, &d) != nil || d.Error == "" {
		return New(status, "%d %s", status, http.StatusText(status))
	}
	return &Error{status, d.Error}
}
