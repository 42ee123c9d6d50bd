package reconcile

import "time"

// startOfTest is a modification time for what test servers serve.
var startOfTest = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
