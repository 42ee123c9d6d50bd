package plan

// For the external tests, which need package plantest.
var (
	NewPlan     = newPlan
	Suspensions = activeSuspensions
)
