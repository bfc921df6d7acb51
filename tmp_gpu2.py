import sys; sys.path.insert(0,'src')
import torch, numpy as np
from floc.bench.gpu import film, _median_ms
from floc.selection.gpu.sets import Sets
from floc.selection.gpu import greedy as G, similarity as M
dev=torch.device('cuda',0); torch.cuda.set_device(0)
tok=film(784,60,3584,dev).view(-1,3584); rows=M.Rows.of(tok)
sizes=[1920]*24+[960]; sets=Sets(tuple(sizes),tuple(sizes),tuple(s//8+1 for s in sizes),True,dev)
buf=torch.empty(sets.elements,dtype=torch.int16,device=dev); M.fill(buf,rows,rows,sets,1)
orig=G._team
class Sub:
    def __getitem__(self,grid):
        return lambda *a,**k: orig[grid](*a,**{**k,'ROWS':RR,'num_warps':WW,'LANES':max(1,WW*256//k['CANDIDATES_']),'AT_ONCE':LL})
print('rows',_median_ms(lambda:M.Rows.of(tok),False),'fill',_median_ms(lambda:M.fill(buf,rows,rows,sets,1),False),flush=True)
print('solo',_median_ms(lambda:G.greedy(buf,sets,team=0),False),flush=True)
G._team=Sub()
for team,WW,RR,LL in ((5,4,8,4),(5,4,16,4),(5,8,8,4),(4,4,16,4),(4,8,8,4),(3,8,8,4),(2,8,8,4),(5,4,16,3)):
    print('team',team,WW,RR,LL,_median_ms(lambda:G.greedy(buf,sets,team=team),False),flush=True)
s3=Sets((47040,),(47040,),(5881,),True,dev); b3=torch.empty(s3.elements,dtype=torch.int16,device=dev); M.fill(b3,rows,rows,s3,1)
for WW,RR,LL in ((8,8,8),(8,16,8),(8,8,4),(8,16,6)):
    q=G.greedy(b3,s3,team=132); print('whole',WW,RR,LL,_median_ms(lambda:G.greedy(b3,s3,team=132),False),q.steps.tolist(),flush=True)
w=torch.randint(1,2000,(11760,),device=dev)
cands=M.Rows.of(tok[::4].contiguous()); s4=Sets((11760,),(11760,),(5881,),False,dev); b4=torch.empty(s4.elements,dtype=torch.int16,device=dev); M.fill(b4,cands,cands,s4,2)
for WW,RR,LL in ((4,4,8),(4,8,8),(8,4,8),(4,4,4),(4,2,8)):
    q=G.greedy(b4,s4,w,team=132); print('second',WW,RR,LL,_median_ms(lambda:G.greedy(b4,s4,w,team=132),False),q.steps.tolist(),flush=True)
