package plan

// For the external tests, which need package plantest.
var (
	AddRejection = addRejection
	NewPlan      = newPlan
	Suspensions  = activeSuspensions
)

// CacheRanks lets plans for d keep the ranks of disks, as [NewDesired] does.
func CacheRanks(d *Desired) { d.rankCache = NewRankCache(d.Config.Nodes, maxCachedRanks) }
