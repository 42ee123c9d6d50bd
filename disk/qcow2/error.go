package qcow2

import "fmt"

// FormatError says why a file cannot be an image. It is final until the
// declaration or the file changes. Reason and Hint are each one sentence and
// quote no bytes of the file, so both are safe to print.
type FormatError struct {
	Reason string
	Hint   string // what to do about it
}

// Error returns the reason without the hint.
func (e *FormatError) Error() string { return e.Reason }

func refuse(hint, reason string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(reason, args...), Hint: hint}
}
