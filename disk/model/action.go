package model

import "fmt"

// Op is the operation of an action.
type Op string

// The operations. Wait and Blocked do nothing. A wait is intended. A blocked action shows that something is wrong or doubtful: usually a person must
// change something, but some blocked actions are tried again later.
const (
	Download Op = "download"
	Upload   Op = "upload"
	Export   Op = "export"
	Restore  Op = "restore"
	Clone    Op = "clone"
	Sync     Op = "sync"
	Adopt    Op = "adopt"
	Verify   Op = "verify"
	Repair   Op = "repair"
	Backup   Op = "backup"
	Cleanup  Op = "cleanup"
	Evict    Op = "evict"
	Wait     Op = "wait"
	Blocked  Op = "blocked"
)

// Ops are the operations that do something.
var Ops = []Op{Download, Upload, Export, Restore, Clone, Sync, Adopt, Verify, Repair, Backup, Cleanup, Evict}

// IsFirstCopy reports whether the operation creates the first copy of an image.
func (op Op) IsFirstCopy() bool {
	return op == Download || op == Upload || op == Export || op == Restore || op == Clone
}

// CreatesCopy reports whether the operation creates a copy.
func (op Op) CreatesCopy() bool { return op.IsFirstCopy() || op == Sync }

// ReadsCopies reports whether the operation reads its bytes from ready copies.
func (op Op) ReadsCopies() bool { return op == Sync || op == Repair }

// Deletes reports whether the operation deletes a copy.
func (op Op) Deletes() bool { return op == Cleanup || op == Evict }

// NeedsFile reports whether the operation works on an existing file.
func (op Op) NeedsFile() bool { return op == Adopt || op == Verify || op == Repair }

// Code is the stable name of a reason, so that programs need not read the text. The planner defines the codes.
type Code string

// Reason is why an action is planned, or why nothing is done. The zero value is no reason.
type Reason struct {
	Code Code `json:"code"`
	// Text is a sentence for people. It may change between versions.
	Text string `json:"text"`
}

// IsZero reports whether there is no reason.
func (r Reason) IsZero() bool { return r == Reason{} }

// With returns the reason with another code, and with text appended to its own.
func (r Reason) With(code Code, format string, args ...any) Reason {
	return Reason{Code: code, Text: r.Text + fmt.Sprintf(format, args...)}
}
