package status

import "time"

// Delivery is the outcome of the messages that a daemon sends to one server.
type Delivery struct {
	// Server is the scheme and host of the address, or the bucket.
	Server string `json:"server"`
	// LastSuccess is when the server last accepted a message; zero: since the start of the process, it accepted none.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Problem is why the server did not accept the last message, and ProblemSince when the first of the failed attempts
	// ended; zero if it did.
	Problem      string    `json:"problem,omitempty"`
	ProblemSince time.Time `json:"problemSince,omitzero"`
}
